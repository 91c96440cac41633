#include "launcher/rendezvous/make_hosts.h"

#include "launcher/error.h"
#include "launcher/rendezvous/one_host.h"

namespace weft::launcher {

std::unique_ptr<Hosts>
make_hosts(const Options& options, const std::string&, Say) {
  if (options.hosts.node_count > 1) {
    throw LaunchError("--nnodes: several hosts are not supported yet.");
  }
  return std::make_unique<OneHost>(options.worker_count, options.max_restarts);
}

} // namespace weft::launcher
