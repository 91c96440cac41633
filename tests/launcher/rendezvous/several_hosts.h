#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gtest/gtest.h>

#include "launcher/process/master_socket.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {

/// Launchers of a run over two hosts, which are both this one.
class SeveralHosts : public ::testing::Test {
 protected:
  std::string token(const std::string& name, char fill) const {
    const std::string path = folder_ / name;
    std::ofstream(path) << std::string(64, fill) << "\n";
    chmod(path.c_str(), 0600);
    return path;
  }

  std::unique_ptr<WeftrunProcess> host(
      int node,
      const std::string& script,
      const std::vector<std::string>& more = {},
      int workers = 1) const {
    std::vector<std::string> flags{
        "--nnodes=2",
        "--node-rank=" + std::to_string(node),
        "--rdzv-endpoint=127.0.0.1:" + std::to_string(port_),
        token_flag_,
        "--rdzv-id=job",
        "--rdzv-conf=keep_alive_interval=0.5"};
    flags.insert(flags.end(), more.begin(), more.end());
    return std::make_unique<WeftrunProcess>(shell(workers, script, flags));
  }

  const test::TempFolder folder_;
  const std::string token_ = token("token", 'a');
  std::string token_flag_ = "--token-file=" + token_;
  const int port_ = MasterSocket("127.0.0.1", 0).port();
};

} // namespace weft::launcher
