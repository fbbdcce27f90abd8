#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fstream>

#include "net/net_test_server.h"
#include "origin/chunk_reader.h"
#include "origin/peer_origin.h"
#include "stored/allowance.h"
#include "stored/blob_fixture.h"
#include "stored/peer_server.h"

namespace dsec::stored {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

origin::FleetKey fleet(char of = 'k') { return origin::FleetKey::of(std::string(32, of)).value(); }
net::ServerAddress address_of(std::uint16_t port) { return net::parse_server_address("http://127.0.0.1:" + std::to_string(port)).value(); }

// The fixture's folder is the peer's; what asks it has nothing but the store.
class PeerTest : public BlobTest {
 protected:
  void start(PeerServerOptions options = {}) {
    blobs_ = table();
    chunks_ = std::make_unique<LocalChunks>(*blobs_, folder_ + "/layers");
    auto started = PeerServer::start(std::move(options), fleet(), *chunks_, [this] { return busy_.load(); });
    ASSERT_TRUE(started.ok()) << started.error().message();
    server_ = std::move(started).value();
  }

  // In the store, its index known, and nothing of it at the peer.
  std::string publish(const std::string& bytes) {
    const Content content = Content::of_bytes(bytes);
    EXPECT_TRUE(store_.publish({ObjectKind::kData, content.hex()}, content, Deadline::in(seconds(5))).ok());
    indexes_[content.hex()] = ChunkIndex::of(content)->bytes();
    return content.hex();
  }
  // Whole among the peer's layers, without an index.
  void give_whole(const std::string& hex, const std::string& bytes) { std::ofstream(folder_ + "/layers/" + hex + ".data", std::ios::binary) << bytes; }

  std::unique_ptr<origin::PeerOrigin> asking(std::vector<net::ServerAddress> peers, char of = 'k', origin::PeerRules rules = {}) {
    const auto index_of = [this](const std::string& hex) -> Result<ChunkIndex> {
      if (!indexes_.contains(hex)) return Error(ErrorCode::kNotFound, "no index");
      return ChunkIndex::parse(indexes_.at(hex));
    };
    return std::make_unique<origin::PeerOrigin>(store_, std::move(peers), fleet(of), index_of, rules);
  }
  std::unique_ptr<origin::PeerOrigin> asking() { return asking({address_of(server_->port())}); }

  Result<std::string> read_all(origin::Origin& from, const std::string& hex, std::uint64_t first, std::uint64_t count) {
    origin::ChunkReader reader(from, {ObjectKind::kData, hex}, ChunkIndex::parse(indexes_.at(hex)).value(), {.attempts = 1, .each = seconds(5)});
    const auto got = reader.read(first, count, Deadline::in(seconds(5)));
    if (!got.ok()) return got.error();
    return std::string(got->view());
  }

  std::map<std::string, std::string> indexes_;
  std::unique_ptr<BlobTable> blobs_;
  std::unique_ptr<LocalChunks> chunks_;
  std::atomic<bool> busy_{false};
  std::unique_ptr<PeerServer> server_;
};

TEST_F(PeerTest, ReadsOfAPeerWhatItHasAndTheRestOfTheStore) {
  const std::string bytes = some_bytes(10 * kChunk + 1000, 1);
  const std::string hex = publish(bytes);
  ASSERT_EQ(serve(bytes), hex);
  start();
  ASSERT_EQ(read(*blobs_, hex, 2 * kChunk, 3 * kChunk).value(), bytes.substr(2 * kChunk, 3 * kChunk));
  ASSERT_EQ(read(*blobs_, hex, 10 * kChunk, 1000).value(), bytes.substr(10 * kChunk));
  store_.read_bytes = 0;

  const auto peers = asking();
  EXPECT_EQ(read_all(*peers, hex, 0, 11).value(), bytes);

  EXPECT_EQ(peers->counts().peer_bytes, 3 * kChunk + 1000);
  EXPECT_EQ(store_.read_bytes, 7 * kChunk);
  EXPECT_EQ(server_->counts().bytes, 3 * kChunk + 1000 + 2) << "and two bytes that say what is here";
}

TEST_F(PeerTest, WhatAnEarlierProcessOfThePeerLeftIsGivenWhenItIsRight) {
  const std::string bytes = some_bytes(4 * kChunk, 2);
  const std::string hex = publish(bytes);
  ASSERT_EQ(serve(bytes), hex);
  ASSERT_TRUE(read(*table(), hex, 0, 2 * kChunk).ok());
  {
    std::fstream file(folder_ + "/state/" + hex + ".chunks", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kChunk + 5);
    file << "rotten";
  }
  start();

  const auto peers = asking();
  EXPECT_EQ(read_all(*peers, hex, 0, 1).value(), bytes.substr(0, kChunk));
  EXPECT_EQ(read_all(*peers, hex, 1, 1).value(), bytes.substr(kChunk, kChunk));

  EXPECT_EQ(peers->counts().peer_bytes, kChunk);
  EXPECT_EQ(peers->counts().wrong + peers->counts().faults, 0u) << "a chunk that rotted is one that is not there";
}

TEST_F(PeerTest, NeedsNoStoreForWhatPeersHave) {
  const std::string bytes = some_bytes(5 * kChunk, 3);
  const std::string hex = publish(bytes);
  give_whole(hex, bytes);
  start();
  store_.fails = true;
  store_.memory().replace({ObjectKind::kData, hex}, "gone");

  const auto peers = asking();

  EXPECT_EQ(read_all(*peers, hex, 0, 5).value(), bytes);
  EXPECT_EQ(read_all(*peers, hex, 4, 1).value(), bytes.substr(4 * kChunk));
}

TEST_F(PeerTest, APeerThatLiesIsFoundOutAndNotAskedAgain) {
  const std::string bytes = some_bytes(5 * kChunk, 4);
  const std::string hex = publish(bytes);
  std::string lie = bytes;
  lie[3 * kChunk] = static_cast<char>(lie[3 * kChunk] ^ 1);
  give_whole(hex, lie);
  start();

  const auto peers = asking();
  for (std::uint64_t chunk = 0; chunk < 5; ++chunk) EXPECT_EQ(read_all(*peers, hex, chunk, 1).value(), bytes.substr(chunk * kChunk, kChunk));

  EXPECT_EQ(peers->counts().wrong, 1u);
  EXPECT_EQ(peers->counts().peer_bytes, 3 * kChunk) << "before the lie";
  EXPECT_EQ(peers->counts().store_bytes, 2 * kChunk);
}

TEST_F(PeerTest, AnotherPeerTakesOverFromOneThatLies) {
  const std::string bytes = some_bytes(6 * kChunk, 5);
  const std::string hex = publish(bytes);
  give_whole(hex, bytes);
  start();
  char other[] = "/tmp/dsec-peer-test-XXXXXX";
  ASSERT_NE(::mkdtemp(other), nullptr);
  std::ofstream(std::string(other) + "/" + hex + ".data", std::ios::binary) << std::string(bytes.size(), 'x');
  LocalChunks lies(*blobs_, other);
  auto liar = PeerServer::start({}, fleet(), lies, [] { return false; });
  ASSERT_TRUE(liar.ok());

  const auto peers = asking({address_of((*liar)->port()), address_of(server_->port())});
  for (std::uint64_t chunk = 0; chunk < 6; ++chunk) EXPECT_EQ(read_all(*peers, hex, chunk, 1).value(), bytes.substr(chunk * kChunk, kChunk));

  EXPECT_EQ(peers->counts().store_bytes, 0u);
  EXPECT_EQ(peers->counts().wrong, 1u);
  (void)sys::remove_tree_at(AT_FDCWD, other);
}

// A socket that listens and says nothing.
class Silent {
 public:
  Silent() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 16), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
  }
  std::uint16_t port() const { return port_; }

 private:
  sys::Fd fd_;
  std::uint16_t port_ = 0;
};

TEST_F(PeerTest, PeersThatAreDeadOrSilentCostABoundedTimeOnce) {
  const std::string bytes = some_bytes(3 * kChunk, 6);
  const std::string hex = publish(bytes);
  std::uint16_t dead = 0;
  std::vector<std::unique_ptr<Silent>> silent;
  { dead = Silent().port(); }
  std::vector<net::ServerAddress> addresses = {address_of(dead)};
  for (int i = 0; i < 8; ++i) {
    silent.push_back(std::make_unique<Silent>());
    addresses.push_back(address_of(silent.back()->port()));
  }

  const auto peers = asking(std::move(addresses), 'k', {.ask_patience = milliseconds(50), .all_patience = milliseconds(200)});
  const Instant begin = std::chrono::steady_clock::now();
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) EXPECT_EQ(read_all(*peers, hex, chunk, 1).value(), bytes.substr(chunk * kChunk, kChunk));

  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(3));
  EXPECT_LE(peers->counts().faults, 9u) << "no peer is asked a second time";
  EXPECT_EQ(peers->counts().store_bytes, bytes.size());
}

// Says that it has everything, and is asked for it in vain.
net::asio::awaitable<void> promise_and_do_not_deliver(net::Exchange& exchange) {
  const std::string authorization = *exchange.request().header("Authorization");
  if (!exchange.request().query.empty()) co_return co_await exchange.client_gone();
  (void)co_await exchange.respond({.body = fleet().seal("\xff", authorization)});
}

net::asio::awaitable<void> say_more_than_was_asked(net::Exchange& exchange) {
  const std::string authorization = *exchange.request().header("Authorization");
  (void)co_await exchange.respond({.body = fleet().seal(std::string(5 * kChunk, '\xff'), authorization)});
}

TEST_F(PeerTest, APeerThatDoesNotKeepItsWordCostsABoundedTimeOnce) {
  const std::string bytes = some_bytes(4 * kChunk, 9);
  const std::string hex = publish(bytes);
  net::TestServer promising(&promise_and_do_not_deliver);
  net::TestServer talkative(&say_more_than_was_asked);

  const auto peers = asking({address_of(promising.port()), address_of(talkative.port())}, 'k', {.read_patience = milliseconds(100)});
  const Instant begin = std::chrono::steady_clock::now();
  for (std::uint64_t chunk = 0; chunk < 4; ++chunk) EXPECT_EQ(read_all(*peers, hex, chunk, 1).value(), bytes.substr(chunk * kChunk, kChunk));

  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(2));
  EXPECT_EQ(peers->counts().faults, 1u);
  EXPECT_EQ(peers->counts().wrong, 1u);
  EXPECT_EQ(peers->counts().store_bytes, bytes.size());
}

TEST_F(PeerTest, ANodeOfAnotherFleetGetsNothing) {
  const std::string bytes = some_bytes(kChunk, 7);
  const std::string hex = publish(bytes);
  give_whole(hex, bytes);
  start();

  const auto peers = asking({address_of(server_->port())}, 'x');
  EXPECT_EQ(read_all(*peers, hex, 0, 1).value(), bytes);
  net::BlockingClient anybody(address_of(server_->port()), {});

  EXPECT_EQ(peers->counts().peer_bytes, 0u);
  EXPECT_EQ(anybody.call({.target = "/v1/chunks/" + hex}).value().status, 401);
  EXPECT_EQ(anybody.call({.target = "/"}).value().status, 401);
  EXPECT_EQ(server_->counts().bytes, 0u);
}

TEST_F(PeerTest, GivesDataObjectsAndNothingElseOfItsFolders) {
  start();
  std::ofstream(folder_ + "/layers/secret") << "secret";
  std::ofstream(folder_ + "/layers/" + std::string(64, 'a') + ".meta") << "secret";
  ASSERT_EQ(::symlink("/etc/passwd", (folder_ + "/layers/" + std::string(64, 'b') + ".data").c_str()), 0);
  origin::PeerClient client(address_of(server_->port()), fleet());

  for (const std::string& target : {"/v1/chunks/secret", "/v1/chunks/..%2Fsecret", "/v1/chunks/", "/v1/other/x", "/"})
    EXPECT_EQ(client.get(target, 1000, Deadline::in(seconds(2))).error().code(), ErrorCode::kNotFound) << target;
  for (const char digit : {'a', 'b', 'c'})
    EXPECT_EQ(client.get("/v1/chunks/" + std::string(64, digit), 1000, Deadline::in(seconds(2))).error().code(), ErrorCode::kNotFound) << digit;
  const std::string target = "/v1/chunks/" + std::string(64, 'c');
  for (const char* query : {"?first=0", "?first=x&count=1", "?first=0&count=0", "?first=0&count=17"}) EXPECT_FALSE(client.get(target + query, 1000, Deadline::in(seconds(2))).ok()) << query;
}

TEST_F(PeerTest, ANodeWithItsHandsFullSendsOthersAway) {
  const std::string bytes = some_bytes(8 * kChunk, 8);
  const std::string hex = publish(bytes);
  give_whole(hex, bytes);
  start({.bytes_per_second = 2 * kChunk});

  const auto peers = asking();
  for (std::uint64_t chunk = 0; chunk < 8; ++chunk) EXPECT_EQ(read_all(*peers, hex, chunk, 1).value(), bytes.substr(chunk * kChunk, kChunk));
  EXPECT_GE(peers->counts().store_bytes, 4 * kChunk) << "past what the peer gives in a second";
  EXPECT_EQ(peers->counts().faults, 0u) << "which is no fault of its";
  EXPECT_GE(server_->counts().busy, 1u);

  busy_ = true;
  const auto fresh = asking();
  EXPECT_EQ(read_all(*fresh, hex, 0, 1).value(), bytes.substr(0, kChunk));
  EXPECT_EQ(fresh->counts().peer_bytes, 0u);
}

TEST(AllowanceTest, GivesASecondsWorthAndNoMore) {
  Allowance allowance(1000);
  const Instant begin{seconds(100)};

  EXPECT_TRUE(allowance.take(600, begin));
  EXPECT_FALSE(allowance.take(600, begin));
  EXPECT_TRUE(allowance.take(400, begin));
  EXPECT_FALSE(allowance.take(100, begin + milliseconds(50)));
  EXPECT_TRUE(allowance.take(100, begin + milliseconds(150)));
  EXPECT_FALSE(allowance.take(1200, begin + milliseconds(500)));
  EXPECT_TRUE(allowance.take(1200, begin + seconds(60))) << "what is larger than a second's worth, when nothing else is going on";
  EXPECT_FALSE(allowance.take(1000, begin + seconds(61)));
}

}  // namespace
}  // namespace dsec::stored
