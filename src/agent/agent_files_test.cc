// File requests through the real agent.
#include <gtest/gtest.h>
#include <linux/limits.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "agent/agent_test_client.h"
#include "agent/tar_format.h"

namespace dsec::agent {
namespace {

using protocol::FileReply;
using protocol::FileRequest;
using protocol::FileVerb;
using protocol::MessageType;

class FilesTest : public ::testing::Test {
 protected:
  static std::string agent_program() {
    char self[PATH_MAX] = {};
    if (::readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return "dsec-agent";
    const std::string path(self);
    return path.substr(0, path.rfind('/') + 1) + "dsec-agent";
  }
  FilesTest() : agent_(agent_program()), client_(agent_.socket_path()) {
    char name[] = "/tmp/dsec-agent-files-XXXXXX";
    dir_ = ::mkdtemp(name);
    ::chmod(dir_.c_str(), 0777);
  }
  ~FilesTest() override { std::filesystem::remove_all(dir_); }
  void SetUp() override { ASSERT_TRUE(client_.hello("secret", 1)); }

  struct Answer {
    FileReply last;
    std::vector<protocol::FileInfo> entries;
    std::string data;
    bool came = false;
  };
  // Sends, feeds `upload` by the window, reads all replies.
  Answer ask(FileRequest request, std::optional<std::string> upload = std::nullopt) {
    request.request_id = ++next_id_;
    client_.send(MessageType::kFileRequest, request);
    Answer answer;
    std::uint64_t sent = 0, taken = 0;
    bool ended = false;
    const auto feed = [&] {
      while (upload && !ended && sent - taken + protocol::kDataChunk <= protocol::kOutputWindow) {
        const std::string chunk = upload->substr(sent, protocol::kDataChunk);
        ended = sent + chunk.size() == upload->size();
        client_.send(MessageType::kFileData, protocol::FileData{.request_id = next_id_, .offset = sent, .bytes = chunk, .end = ended});
        sent += chunk.size();
      }
    };
    feed();
    while (const auto frame = client_.next()) {
      if (frame->type == MessageType::kFileAck) {
        taken = protocol::decode<protocol::FileAck>(frame->body)->offset;
        feed();
      } else if (frame->type == MessageType::kFileData) {
        const auto data = protocol::decode<protocol::FileData>(frame->body).value();
        EXPECT_EQ(data.offset, answer.data.size());
        answer.data += data.bytes;
        client_.send(MessageType::kFileAck, protocol::FileAck{.request_id = next_id_, .offset = answer.data.size()});
      } else if (frame->type == MessageType::kFileReply) {
        auto reply = protocol::decode<FileReply>(frame->body).value();
        answer.entries.insert(answer.entries.end(), reply.entries.begin(), reply.entries.end());
        answer.last = std::move(reply);
        if (answer.last.more) continue;
        answer.came = true;
        return answer;
      }
    }
    return answer;
  }
  std::string at(const std::string& name) const { return dir_ + "/" + name; }
  void put(const std::string& name, const std::string& text) { std::ofstream(at(name)) << text; }
  std::string get(const std::string& name) {
    std::ifstream in(at(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string file_entry(const std::string& path, const std::string& data) {
    return encode_tar_header({.path = path, .mode = 0644, .size = data.size()}) + data + tar_padding(data.size());
  }

  AgentProcess agent_;
  AgentTestClient client_;
  std::string dir_;
  std::uint64_t next_id_ = 0;
};

TEST_F(FilesTest, WritesAndReadsFilesOfAnySize) {
  std::string content(5'000'000, 'x');
  for (std::size_t i = 0; i < content.size(); i += 97) content[i] = static_cast<char>(i);

  const auto written = ask({.verb = FileVerb::kWrite, .path = at("a/b/big"), .parents = true}, content);
  const auto read = ask({.verb = FileVerb::kRead, .path = at("a/b/big")});
  const auto empty = ask({.verb = FileVerb::kWrite, .path = at("empty")}, "");

  EXPECT_EQ(written.last.error_number, 0) << written.last.message;
  EXPECT_TRUE(read.data == content);
  EXPECT_EQ(empty.last.error_number, 0);
  EXPECT_TRUE(std::filesystem::is_empty(at("empty")));
}

TEST_F(FilesTest, ReadsAPart) {
  put("f", "0123456789");

  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = at("f"), .offset = 3, .length = 4}).data, "3456");
  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = at("f"), .offset = 30}).data, "");
}

TEST_F(FilesTest, ReplacesAFileInOneStepAndKeepsItsMode) {
  put("f", "old");
  ::chmod(at("f").c_str(), 0751);
  ::symlink("f", at("link").c_str());

  const auto written = ask({.verb = FileVerb::kWrite, .path = at("link")}, "new");

  ASSERT_EQ(written.last.error_number, 0) << written.last.message;
  EXPECT_EQ(get("f"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(at("link")));
  struct stat status {};
  ::stat(at("f").c_str(), &status);
  EXPECT_EQ(status.st_mode & 07777, 0751u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 2) << "no temporary file is left";
}

TEST_F(FilesTest, LeavesTheOldFileWhenAWriteIsCancelled) {
  put("f", "old");
  client_.send(MessageType::kFileRequest, FileRequest{.request_id = 77, .verb = FileVerb::kWrite, .path = at("f")});
  client_.send(MessageType::kFileData, protocol::FileData{.request_id = 77, .offset = 0, .bytes = "half of the new"});
  ASSERT_TRUE(client_.await<protocol::FileAck>(MessageType::kFileAck));
  client_.send(MessageType::kFileCancel, protocol::FileCancel{.request_id = 77});

  const auto read = ask({.verb = FileVerb::kRead, .path = at("f")});

  EXPECT_EQ(read.data, "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(FilesTest, RefusesWhatIsNoRegularFile) {
  ::mkfifo(at("fifo").c_str(), 0666);

  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = at("fifo")}).last.error_number, EINVAL);
  EXPECT_EQ(ask({.verb = FileVerb::kWrite, .path = at("fifo")}, "x").last.error_number, EINVAL);
  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = "/dev/zero"}).last.error_number, EINVAL);
  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = dir_}).last.error_number, EISDIR);
  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = at("none")}).last.error_number, ENOENT);
}

TEST_F(FilesTest, ShowsNothingOfTheWorkerItself) {
  ::symlink("/proc/self/mem", at("mem").c_str());
  ::symlink("/proc/self/environ", at("environ").c_str());
  ::symlink("/proc/self/fd/3", at("channel").c_str());

  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = at("mem")}).last.error_number, EACCES);
  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = at("environ")}).last.error_number, EACCES);
  EXPECT_NE(ask({.verb = FileVerb::kRead, .path = at("channel")}).last.error_number, 0);
}

TEST_F(FilesTest, TellsWhatAFileIs) {
  put("f", "12345");
  ::symlink("f", at("link").c_str());

  const auto file = ask({.verb = FileVerb::kStat, .path = at("f")});
  const auto link = ask({.verb = FileVerb::kStat, .path = at("link")});
  const auto root = ask({.verb = FileVerb::kStat, .path = "/"});

  ASSERT_EQ(file.entries.size(), 1u);
  EXPECT_EQ(file.entries[0].size, 5u);
  EXPECT_EQ(file.entries[0].type, protocol::FileType::kFile);
  EXPECT_EQ(file.entries[0].user, "root");
  ASSERT_EQ(link.entries.size(), 1u);
  EXPECT_EQ(link.entries[0].type, protocol::FileType::kSymlink);
  EXPECT_EQ(link.entries[0].target, "f");
  ASSERT_EQ(root.entries.size(), 1u);
  EXPECT_EQ(root.entries[0].type, protocol::FileType::kDirectory);
}

TEST_F(FilesTest, ListsInOrderWithALimit) {
  std::filesystem::create_directories(at("d/e"));
  for (int i = 0; i < 1000; ++i) put("d/f" + std::to_string(1000 + i), "");
  put("d/e/deep", "");

  const auto flat = ask({.verb = FileVerb::kList, .path = at("d")});
  const auto deep = ask({.verb = FileVerb::kList, .path = at("d"), .recursive = true});
  const auto some = ask({.verb = FileVerb::kList, .path = at("d"), .limit = 10});

  ASSERT_EQ(flat.entries.size(), 1001u);
  EXPECT_EQ(flat.entries[0].path, at("d/e"));
  EXPECT_EQ(flat.entries[1].path, at("d/f1000"));
  EXPECT_FALSE(flat.last.truncated);
  ASSERT_EQ(deep.entries.size(), 1002u);
  EXPECT_EQ(deep.entries[1].path, at("d/e/deep"));
  EXPECT_EQ(some.entries.size(), 10u);
  EXPECT_TRUE(some.last.truncated);
}

TEST_F(FilesTest, MakesMovesAndRemoves) {
  EXPECT_EQ(ask({.verb = FileVerb::kMakeDirectory, .path = at("x/y")}).last.error_number, ENOENT);
  EXPECT_EQ(ask({.verb = FileVerb::kMakeDirectory, .path = at("x/y"), .parents = true}).last.error_number, 0);
  EXPECT_EQ(ask({.verb = FileVerb::kMakeDirectory, .path = at("x")}).last.error_number, EEXIST);
  put("x/y/f", "1");
  EXPECT_EQ(ask({.verb = FileVerb::kMove, .path = at("x/y/f"), .target = at("z/g"), .parents = true}).last.error_number, 0);
  EXPECT_EQ(get("z/g"), "1");
  EXPECT_EQ(ask({.verb = FileVerb::kRemove, .path = at("x")}).last.error_number, ENOTEMPTY);
  ::symlink("/etc", at("x/y/etc").c_str());
  EXPECT_EQ(ask({.verb = FileVerb::kRemove, .path = at("x"), .recursive = true}).last.error_number, 0);
  EXPECT_FALSE(std::filesystem::exists(at("x")));
  EXPECT_TRUE(std::filesystem::exists("/etc/passwd"));
  EXPECT_NE(ask({.verb = FileVerb::kRemove, .path = "/", .recursive = true}).last.error_number, 0);
}

TEST_F(FilesTest, MovesAcrossFileSystems) {
  char shm[] = "/dev/shm/dsec-agent-move-XXXXXX";
  ASSERT_NE(::mkdtemp(shm), nullptr);
  struct stat here {}, there {};
  ::stat(dir_.c_str(), &here);
  ::stat(shm, &there);
  if (here.st_dev == there.st_dev) GTEST_SKIP() << "/tmp and /dev/shm are one file system";
  std::filesystem::create_directories(at("tree/sub"));
  put("tree/sub/f", std::string(100'000, 'm'));
  ::chmod(at("tree/sub/f").c_str(), 0741);
  ::symlink("f", at("tree/sub/l").c_str());

  const auto moved = ask({.verb = FileVerb::kMove, .path = at("tree"), .target = std::string(shm) + "/x"});
  struct stat status {};
  const bool found = ::stat((std::string(shm) + "/x/sub/l").c_str(), &status) == 0;
  std::filesystem::remove_all(shm);

  EXPECT_EQ(moved.last.error_number, 0) << moved.last.message;
  EXPECT_FALSE(std::filesystem::exists(at("tree")));
  EXPECT_TRUE(found);
  EXPECT_EQ(status.st_size, 100'000);
  EXPECT_EQ(status.st_mode & 07777, 0741u);
}

TEST_F(FilesTest, ActsWithTheRightsOfTheUser) {
  put("secret", "s");
  ::chmod(at("secret").c_str(), 0600);

  const auto refused = ask({.verb = FileVerb::kRead, .path = at("secret"), .user = "nobody"});
  const auto written = ask({.verb = FileVerb::kWrite, .path = at("own"), .user = "nobody"}, "mine");
  const auto overwrite = ask({.verb = FileVerb::kWrite, .path = at("secret"), .user = "nobody"}, "theirs");
  const auto unknown = ask({.verb = FileVerb::kStat, .path = at("own"), .user = "no-such-user"});

  EXPECT_EQ(refused.last.error_number, EACCES);
  ASSERT_EQ(written.last.error_number, 0) << written.last.message;
  EXPECT_EQ(written.entries.at(0).user, "nobody");
  EXPECT_EQ(overwrite.last.error_number, EACCES);
  EXPECT_EQ(get("secret"), "s");
  EXPECT_NE(unknown.last.error_number, 0);
}

TEST_F(FilesTest, CarriesATreeOutAndInAgain) {
  std::filesystem::create_directories(at("src/sub"));
  put("src/f", "hello");
  put("src/sub/" + std::string(200, 'n'), std::string(100'000, 'q'));
  ::symlink("../f", at("src/sub/link").c_str());
  ::link(at("src/f").c_str(), at("src/hard").c_str());
  ::chmod(at("src/f").c_str(), 0640);

  const auto out = ask({.verb = FileVerb::kTarOut, .path = at("src")});
  ASSERT_EQ(out.last.error_number, 0) << out.last.message;
  const auto in = ask({.verb = FileVerb::kTarIn, .path = at("dst"), .parents = true}, out.data);

  ASSERT_EQ(in.last.error_number, 0) << in.last.message;
  EXPECT_EQ(get("dst/f"), "hello");
  EXPECT_EQ(get("dst/sub/" + std::string(200, 'n')), std::string(100'000, 'q'));
  EXPECT_EQ(std::filesystem::read_symlink(at("dst/sub/link")), "../f");
  struct stat one {}, two {};
  ::stat(at("dst/f").c_str(), &one);
  ::stat(at("dst/hard").c_str(), &two);
  EXPECT_EQ(one.st_ino, two.st_ino);
  EXPECT_EQ(one.st_mode & 07777, 0640u);
  std::ofstream(at("out.tar")) << out.data;
  EXPECT_EQ(std::system(("tar -tf " + at("out.tar") + " > /dev/null").c_str()), 0) << "GNU tar reads it";
}

TEST_F(FilesTest, TakesArchivesOfGnuTar) {
  std::filesystem::create_directories(at("src/" + std::string(120, 'd')));
  put("src/" + std::string(120, 'd') + "/f", "deep");
  std::filesystem::create_directories(at("dst"));
  ASSERT_EQ(std::system(("tar --format=gnu -cf " + at("g.tar") + " -C " + at("src") + " .").c_str()), 0);

  const auto in = ask({.verb = FileVerb::kTarIn, .path = at("dst")}, get("g.tar"));

  ASSERT_EQ(in.last.error_number, 0) << in.last.message;
  EXPECT_EQ(get("dst/" + std::string(120, 'd') + "/f"), "deep");
}

TEST_F(FilesTest, ExtractsNothingOutsideTheTarget) {
  std::filesystem::create_directories(at("dst"));
  std::filesystem::create_directories(at("outside"));
  put("outside/kept", "kept");
  const std::string link_out = encode_tar_header({.path = "exit", .type = TarType::kSymlink, .mode = 0777, .link = "../outside"});
  const std::string absolute = encode_tar_header({.path = "root", .type = TarType::kSymlink, .mode = 0777, .link = at("outside")});
  const std::string hard = encode_tar_header({.path = "h", .type = TarType::kHardLink, .link = "../outside/kept"});

  const std::vector<std::string> hostile = {
      file_entry("../outside/new", "x"),
      file_entry("a/../../outside/new", "x"),
      link_out + file_entry("exit/new", "x"),
      absolute + file_entry("root/new", "x"),
      absolute + file_entry("root/kept", "x"),
      hard,
  };
  for (const auto& archive : hostile) {
    const auto answer = ask({.verb = FileVerb::kTarIn, .path = at("dst")}, archive + tar_end());
    EXPECT_NE(answer.last.error_number, 0);
  }
  // A leading slash is only cut off.
  EXPECT_EQ(ask({.verb = FileVerb::kTarIn, .path = at("dst")}, file_entry("/abs/f", "x") + tar_end()).last.error_number, 0);

  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(at("outside")), {}), 1);
  EXPECT_EQ(get("outside/kept"), "kept");
  EXPECT_EQ(get("dst/abs/f"), "x");
}

TEST_F(FilesTest, ReplacesALinkInsteadOfWritingThroughIt) {
  std::filesystem::create_directories(at("dst"));
  put("victim", "v");
  ::symlink(at("victim").c_str(), at("dst/f").c_str());

  const auto in = ask({.verb = FileVerb::kTarIn, .path = at("dst")}, file_entry("f", "new") + tar_end());

  EXPECT_EQ(in.last.error_number, 0);
  EXPECT_EQ(get("victim"), "v");
  EXPECT_EQ(get("dst/f"), "new");
}

TEST_F(FilesTest, RefusesDamagedArchives) {
  const std::string good = file_entry("f", std::string(2000, 'z')) + tar_end();
  std::string flipped = good;
  flipped[10] = '!';

  EXPECT_EQ(ask({.verb = FileVerb::kTarIn, .path = dir_}, std::string("no tar at all")).last.error_number != 0, true);
  EXPECT_NE(ask({.verb = FileVerb::kTarIn, .path = dir_}, flipped).last.error_number, 0);
  EXPECT_NE(ask({.verb = FileVerb::kTarIn, .path = dir_}, good.substr(0, 1000)).last.error_number, 0);
}

TEST_F(FilesTest, WatchesATree) {
  std::filesystem::create_directories(at("w"));
  client_.send(MessageType::kFileRequest, FileRequest{.request_id = 5, .verb = FileVerb::kWatch, .path = at("w"), .recursive = true});
  ASSERT_TRUE(client_.await<FileReply>(MessageType::kFileReply)) << "the watch stands";

  std::filesystem::create_directories(at("w/new"));
  put("w/new/f", "1");
  std::filesystem::remove(at("w/new/f"));

  bool created = false, removed = false;
  while (!removed) {
    const auto reply = client_.await<FileReply>(MessageType::kFileReply);
    ASSERT_TRUE(reply);
    for (const auto& event : reply->events) {
      created = created || (event.kind == protocol::WatchKind::kCreate && event.path == at("w/new"));
      removed = removed || (event.kind == protocol::WatchKind::kRemove && event.path == at("w/new/f"));
      if (event.kind == protocol::WatchKind::kCreate && event.path == at("w/new/f")) created = true;
    }
    // The directory may be seen only after the file in it has gone.
    if (created && !removed && !std::filesystem::exists(at("w/again"))) {
      put("w/new/f", "2");
      std::filesystem::remove(at("w/new/f"));
      std::filesystem::create_directories(at("w/again"));
    }
  }
  client_.send(MessageType::kFileCancel, protocol::FileCancel{.request_id = 5});

  EXPECT_TRUE(created);
}

TEST_F(FilesTest, ServesCommandsWhileALargeFileIsOnItsWay) {
  std::string content(64'000'000, 'x');
  put("big", content);
  client_.send(MessageType::kFileRequest, FileRequest{.request_id = 9, .verb = FileVerb::kRead, .path = at("big")});
  // Nothing is acknowledged: the transfer stands still at its window.
  const auto outcome = client_.run({.op_id = "1", .argv = {"echo", "ok"}});

  EXPECT_EQ(outcome.out, "ok\n");
}

TEST_F(FilesTest, QueuesMoreRequestsThanItHasWorkers) {
  put("f", "x");
  for (std::uint64_t i = 0; i < 100; ++i) client_.send(MessageType::kFileRequest, FileRequest{.request_id = 1000 + i, .verb = FileVerb::kStat, .path = at("f")});

  int answered = 0;
  while (answered < 100) {
    const auto reply = client_.await<FileReply>(MessageType::kFileReply);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->error_number, 0);
    ++answered;
  }

  EXPECT_EQ(answered, 100);
}

}  // namespace
}  // namespace dsec::agent
