// edge <-> aether: the messages of version 1 of the agent protocol.
//
// A byte stream (unix socket, virtio-serial, vsock) carries frames (frame.h):
// magic, type, length, header checksum, at most 64 KiB of body. A body is a
// protobuf message of protocol/agent.proto. Descriptors of a unix socket travel
// with the first byte of the frame that they belong to.
//
// The edge opens with Hello. The first Hello that an agent ever gets sets the
// secret; each later one must repeat it and carry a higher epoch, and the older
// connection is closed. HelloReply lists every operation that the agent still
// remembers, so that a restarted edge goes on where the last one ended.
//
// Output: the agent reads a pipe only while less than kOutputWindow bytes are
// unacknowledged; Output carries absolute offsets; the edge acknowledges what it
// has stored. After a reconnect the agent sends again from the last acknowledged
// byte. An operation is remembered until Release.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::protocol {

inline constexpr std::uint32_t kAgentProtocolMin = 1;
inline constexpr std::uint32_t kAgentProtocolMax = 1;
inline constexpr std::size_t kMaxFrameBody = 64 << 10;
// Of kExecStart alone, which only an agent reads: a request's arguments and
// environment, and those of the sandbox.
inline constexpr std::size_t kMaxExecArguments = 1 << 20;
inline constexpr std::size_t kMaxExecStartBody = kMaxExecArguments + (384 << 10);
inline constexpr std::size_t kOutputWindow = 256 << 10;
inline constexpr std::size_t kDataChunk = 32 << 10;

// HelloReply::features.
inline constexpr std::uint64_t kFeatureTerminal = 1 << 0;
inline constexpr std::uint64_t kFeatureSessions = 1 << 1;
inline constexpr std::uint64_t kFeatureFiles = 1 << 2;
inline constexpr std::uint64_t kFeatureArchives = 1 << 3;
inline constexpr std::uint64_t kFeatureWatch = 1 << 4;

enum class MessageType : std::uint8_t {
  // edge -> agent
  kHello = 1,
  kPing,
  kExecStart,
  kStdin,
  kSignal,
  kResize,
  kOutputAck,
  kRelease,
  kSessionClose,
  kFileRequest,
  kFileData,  // both ways
  kFileAck,   // both ways
  kFileCancel,
  kShutdown,
  // agent -> edge
  kHelloReply = 64,
  kPong,
  kExecStarted,
  kExecFailed,
  kOutput,
  kExited,
  kStdinAck,
  kFileReply,
  kProtocolError,
};

enum class OutputStream : std::uint8_t { kStdout = 1, kStderr = 2 };  // a PTY sends all as kStdout

struct Hello {
  std::string secret;  // 32 bytes
  std::uint64_t epoch = 0;
  std::uint32_t version_min = kAgentProtocolMin;
  std::uint32_t version_max = kAgentProtocolMax;
  bool no_new_privs = false;  // of every payload process; meant on the first Hello
};

enum class OperationState : std::uint8_t { kRunning = 1, kExited = 2 };
struct OperationStatus {
  std::string op_id;
  OperationState state = OperationState::kRunning;
  std::int32_t wait_status = 0;
  std::uint64_t stdout_bytes = 0;  // produced so far
  std::uint64_t stderr_bytes = 0;
  std::int32_t pid = 0;  // in the sandbox's pid namespace; 0 while it waits for its session
};
struct HelloReply {
  std::uint32_t version = 0;
  std::uint64_t features = 0;
  std::vector<OperationStatus> operations;
  std::vector<std::string> sessions;
  bool more = false;  // a further HelloReply goes on with the lists
};

struct Ping {
  std::uint64_t nonce = 0;
};

struct Terminal {
  bool wanted = false;
  std::uint16_t rows = 24;
  std::uint16_t columns = 80;
};

// One command. Exactly one of argv and shell. A known op_id is not started again:
// ExecStarted, ExecFailed or Exited is repeated. Commands of one session run one
// after the other, in the order in which they came; Signal ends one that still
// waits (ExecFailed, stage "session", ECANCELED).
struct ExecStart {
  std::string op_id;
  std::vector<std::string> argv;
  std::string shell;    // run by the sandbox's /bin/bash, else /bin/sh, -c
  std::string session;  // "" = none: cwd, env and shell state last for this command only
  std::vector<std::string> env;  // "NAME=value"; added to the session's or default environment
  bool clear_env = false;
  std::string cwd;   // "" = the session's, else the user's home, else "/"
  std::string user;  // "" = root; "name", "uid", "name:group" or "uid:gid"
  bool open_stdin = false;  // else /dev/null
  Terminal terminal;
  bool with_cgroup = false;  // one descriptor comes with this frame: the operation's v2 cgroup directory
};
struct ExecStarted {
  std::string op_id;
  std::int32_t pid = 0;
  std::uint64_t age_usec = 0;  // since its program was executed: told with the first output where that comes soon
};
// Nothing ran.
struct ExecFailed {
  std::string op_id;
  std::string stage;  // "user", "cwd", "exec", "cgroup", "session", "limit", …
  std::int32_t error_number = 0;
  std::string message;
};
struct Output {
  std::string op_id;
  OutputStream stream = OutputStream::kStdout;
  std::uint64_t offset = 0;
  std::string bytes;
  bool end = false;  // no more will come on this stream
};
struct OutputAck {
  std::string op_id;
  OutputStream stream = OutputStream::kStdout;
  std::uint64_t offset = 0;  // all bytes below are stored
};
// The direct child was reaped. Output that it left in the pipes has been sent
// before, or follows within the drain grace; a grandchild may hold the pipe on.
struct Exited {
  std::string op_id;
  std::int32_t wait_status = 0;
  std::uint64_t user_usec = 0;  // rusage, of what was waited for
  std::uint64_t system_usec = 0;
  std::uint64_t max_rss_kb = 0;
  bool shell_modified = false;  // the shell's file is not the one that the first command saw
};
struct Stdin {
  std::string op_id;
  std::uint64_t offset = 0;
  std::string bytes;
  bool end = false;
};
struct StdinAck {
  std::string op_id;
  std::uint64_t offset = 0;  // taken by the command's pipe; window kOutputWindow
  bool closed = false;       // the command closed its end
};
enum class SignalScope : std::uint8_t { kProcess = 1, kGroup = 2 };
struct Signal {
  std::string op_id;
  std::int32_t number = 0;
  SignalScope scope = SignalScope::kGroup;
};
struct Resize {
  std::string op_id;
  std::uint16_t rows = 24;
  std::uint16_t columns = 80;
};
struct Release {
  std::string op_id;
};
struct SessionClose {
  std::string session;
};

enum class FileVerb : std::uint8_t {
  kStat = 1, kList, kRead, kWrite, kMakeDirectory, kMove, kRemove, kTarOut, kTarIn, kWatch,
};
// Paths are resolved inside the sandbox, by a process that stands in it, with
// the rights of `user`.
struct FileRequest {
  std::uint64_t request_id = 0;  // chosen by the edge, unique in the connection
  FileVerb verb = FileVerb::kStat;
  std::string path;
  std::string target;  // kMove
  std::string user;
  std::uint64_t offset = 0;  // kRead
  std::uint64_t length = 0;  // kRead; 0 = to the end
  std::uint32_t mode = 0;    // kWrite, kMakeDirectory; 0 = default
  bool parents = false;      // kWrite, kMakeDirectory, kMove: make missing ones
  bool recursive = false;    // kList, kRemove, kWatch
  std::uint32_t limit = 0;   // kList: entries; 0 = 10,000
};
enum class FileType : std::uint8_t { kFile = 1, kDirectory, kSymlink, kDevice, kFifo, kSocket };
struct FileInfo {
  std::string path;
  FileType type = FileType::kFile;
  std::uint64_t size = 0;
  std::uint32_t mode = 0;  // permission bits
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::int64_t mtime_ns = 0;
  std::string user;   // name, when known
  std::string group;
  std::string target;  // of a symlink
};
enum class WatchKind : std::uint8_t { kCreate = 1, kWrite, kRemove, kRename, kChmod, kOverflow };
struct WatchEvent {
  WatchKind kind = WatchKind::kCreate;
  std::string path;
};
// Any number of replies with more = true, then one with more = false, which
// carries the error if there was one. kRead and kTarOut send kFileData between.
struct FileReply {
  std::uint64_t request_id = 0;
  bool more = false;
  std::int32_t error_number = 0;
  std::string message;
  std::vector<FileInfo> entries;
  std::vector<WatchEvent> events;
  bool truncated = false;
};
struct FileData {
  std::uint64_t request_id = 0;
  std::uint64_t offset = 0;
  std::string bytes;
  bool end = false;
};
struct FileAck {
  std::uint64_t request_id = 0;
  std::uint64_t offset = 0;  // window kOutputWindow
};
struct FileCancel {
  std::uint64_t request_id = 0;
};
struct ProtocolError {
  std::string message;
};

// Bodies. decode of a hostile body gives kInvalidArgument, never a crash, and
// takes memory in proportion to the body.
std::string encode(const Hello& m);
std::string encode(const HelloReply& m);
std::string encode(const Ping& m);
std::string encode(const ExecStart& m);
std::string encode(const ExecStarted& m);
std::string encode(const ExecFailed& m);
std::string encode(const Output& m);
std::string encode(const OutputAck& m);
std::string encode(const Exited& m);
std::string encode(const Stdin& m);
std::string encode(const StdinAck& m);
std::string encode(const Signal& m);
std::string encode(const Resize& m);
std::string encode(const Release& m);
std::string encode(const SessionClose& m);
std::string encode(const FileRequest& m);
std::string encode(const FileReply& m);
std::string encode(const FileData& m);
std::string encode(const FileAck& m);
std::string encode(const FileCancel& m);
std::string encode(const ProtocolError& m);

// decode<Hello>(body); defined for every message above. kPong has the body of kPing; kShutdown has none.
template <typename Message>
Result<Message> decode(std::string_view body);

}  // namespace dsec::protocol
