// Who is let in, and who is not, by the messages alone.
#include "launcher/connection/handshake.h"

#include <fstream>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/connection/token.h"
#include "launcher/process/error.h"
#include "launcher/rendezvous/messages.h"
#include "launcher/rendezvous/run_result.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

ClientHello some_claim() {
  ClientHello client_hello;
  client_hello.role = Role::kStream;
  client_hello.node = 3;
  client_hello.round = 7;
  client_hello.job = sha256("job");
  client_hello.nonce = random_bits();
  return client_hello;
}

TEST(Handshake, WhoKnowsTheKeyIsProvenAndReadAsWritten) {
  const Bits256 challenge = random_bits();
  const std::string answer = make_answer(some_claim(), challenge, "key");
  ASSERT_EQ(answer.size(), kAnswerSize);
  EXPECT_TRUE(verify_mac(answer, challenge, "key"));
  ClientHello read;
  ASSERT_TRUE(read_answer(answer, read));
  EXPECT_EQ(read.role, Role::kStream);
  EXPECT_EQ(read.node, 3);
  EXPECT_EQ(read.round, 7);
  EXPECT_EQ(read.job, sha256("job"));
}

TEST(Handshake, AnyChangedByteIsRefused) {
  const Bits256 challenge = random_bits();
  const std::string answer = make_answer(some_claim(), challenge, "key");
  for (size_t i = 0; i < answer.size(); ++i) {
    std::string changed = answer;
    changed[i] ^= 1;
    EXPECT_FALSE(verify_mac(changed, challenge, "key")) << i;
  }
}

TEST(Handshake, AnotherKeyAndAReplayAreRefused) {
  const Bits256 challenge = random_bits();
  const std::string answer = make_answer(some_claim(), challenge, "key");
  EXPECT_FALSE(verify_mac(answer, challenge, "other key"));
  EXPECT_FALSE(verify_mac(answer, random_bits(), "key"));
}

TEST(Handshake, DetectsAServerWithoutTheKey) {
  const Bits256 challenge = random_bits();
  const std::string answer = make_answer(some_claim(), challenge, "key");
  AuthStatus status = AuthStatus::kOtherJob;
  EXPECT_TRUE(read_reply(
      make_reply(AuthStatus::kAccepted, answer, challenge, "key"),
      answer,
      challenge,
      "key",
      status));
  EXPECT_EQ(status, AuthStatus::kAccepted);
  EXPECT_FALSE(read_reply(
      make_reply(AuthStatus::kAccepted, answer, challenge, "other"),
      answer,
      challenge,
      "key",
      status));
}

TEST(Handshake, EachStartHasAKeyOfItsOwn) {
  const Bits256 job = sha256("job");
  const Bits256 random = random_bits();
  const auto key = round_key("token", job, 1, random);
  EXPECT_NE(key, round_key("token", job, 2, random));
  EXPECT_NE(key, round_key("token", job, 1, random_bits()));
  EXPECT_NE(key, round_key("token", sha256("other"), 1, random));
  EXPECT_NE(key, round_key("other", job, 1, random));
}

std::string token_error(const std::string& path, mode_t mode) {
  chmod(path.c_str(), mode);
  try {
    read_token(path, -1);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Token, IsReadFromAPrivateFileAlone) {
  const test::TempFolder folder;
  const std::string path = folder / "token";
  const std::string secret(64, 'a');
  std::ofstream(path) << secret << "\n";
  EXPECT_EQ(token_error(path, 0600), "no error");
  EXPECT_EQ(read_token(path, -1), secret);
  EXPECT_THAT(token_error(path, 0640), HasSubstr("Run chmod 600"));
  EXPECT_THAT(token_error(path, 0640), Not(HasSubstr(secret)));
  std::ofstream(path) << "short\n";
  EXPECT_THAT(token_error(path, 0600), HasSubstr("expected 32 to 1024"));
}

HostReport failed(int node, int code, int after_ms) {
  HostReport report;
  report.host = "h" + std::to_string(node);
  report.node_rank = node;
  report.first_rank = 2 * node;
  report.worker_count = 2;
  report.end.code = code;
  report.end.lost_peer = code == 150;
  report.end.line = "ERROR " + std::to_string(code) + " rank=x";
  report.failed = std::chrono::steady_clock::time_point(
      std::chrono::hours(1) + milliseconds(after_ms));
  return report;
}

TEST(RunResult, IsTheFirstCauseOnAnyHost) {
  const auto run_result =
      decide_result({failed(0, 150, 0), failed(1, 134, 100)});
  EXPECT_EQ(run_result.code, 134);
  EXPECT_EQ(run_result.line, "ERROR 134 rank=x (host h1, node rank 1)");
  EXPECT_EQ(decide_result({failed(0, 3, 0), failed(1, 134, 100)}).code, 3);
}

// A program that is not ours ends with another code when its peer is gone.
TEST(RunResult, PeerLossIsNeverTheRootCause) {
  auto follower = failed(0, 1, 0);
  follower.end.lost_peer = true;
  const auto run_result = decide_result({follower, failed(1, 134, 100)});
  EXPECT_EQ(run_result.code, 134);
  EXPECT_THAT(run_result.line, HasSubstr("host h1"));
  EXPECT_EQ(decide_result({follower}).code, 1);
}

TEST(Messages, AnEndArrivesAsItWasSent) {
  HostResult end;
  end.code = 1;
  end.signal = 15;
  end.lost_peer = true;
  end.age = milliseconds(250);
  end.line = "ERROR 1 rank=2 op=launch exited";
  const HostResult read = read_end(to_message(end));
  EXPECT_EQ(read.code, end.code);
  EXPECT_EQ(read.signal, end.signal);
  EXPECT_TRUE(read.lost_peer);
  EXPECT_EQ(read.age, end.age);
  EXPECT_EQ(read.line, end.line);
  EXPECT_FALSE(read_end(to_message(HostResult())).lost_peer);
}

TEST(RunResult, LostHostPrecedesItsPeers) {
  auto lost = failed(1, 0, 15000);
  lost.loss = "no response for 15 s";
  const auto run_result = decide_result({failed(0, 150, 0), lost});
  EXPECT_EQ(run_result.code, 150);
  EXPECT_EQ(
      run_result.line,
      "ERROR 150 rank=2 op=launch host h1, node rank 1, ranks 2 to 3 was lost: "
      "no response for 15 s");
  EXPECT_EQ(decide_result({failed(0, 134, 0), lost}).code, 134);
}

} // namespace
} // namespace weft::launcher
