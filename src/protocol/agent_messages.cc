// Each message lists its fields once, with their numbers of agent.proto; a
// writer and a reader walk the list. A default value is not written (proto3).
#include "protocol/agent_messages.h"

#include <limits>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <type_traits>

namespace dsec::protocol {
namespace {

template <typename M, typename T>
concept Is = std::is_same_v<std::remove_const_t<M>, T>;

void walk(auto& f, Is<Hello> auto& m) {
  f(1, m.secret), f(2, m.epoch), f(3, m.version_min), f(4, m.version_max), f(5, m.no_new_privs);
}
void walk(auto& f, Is<OperationStatus> auto& m) {
  f(1, m.op_id), f(2, m.state), f(3, m.wait_status), f(4, m.stdout_bytes), f(5, m.stderr_bytes), f(6, m.pid);
}
void walk(auto& f, Is<HelloReply> auto& m) {
  f(1, m.version), f(2, m.features), f(3, m.operations), f(4, m.sessions), f(5, m.more);
}
void walk(auto& f, Is<Ping> auto& m) { f(1, m.nonce); }
void walk(auto& f, Is<Terminal> auto& m) { f(1, m.wanted), f(2, m.rows), f(3, m.columns); }
void walk(auto& f, Is<ExecStart> auto& m) {
  f(1, m.op_id), f(2, m.argv), f(3, m.shell), f(4, m.session), f(5, m.env), f(6, m.clear_env), f(7, m.cwd);
  f(8, m.user), f(9, m.open_stdin), f(10, m.terminal), f(11, m.with_cgroup);
}
void walk(auto& f, Is<ExecStarted> auto& m) { f(1, m.op_id), f(2, m.pid), f(3, m.age_usec); }
void walk(auto& f, Is<ExecFailed> auto& m) { f(1, m.op_id), f(2, m.stage), f(3, m.error_number), f(4, m.message); }
void walk(auto& f, Is<Output> auto& m) { f(1, m.op_id), f(2, m.stream), f(3, m.offset), f(4, m.bytes), f(5, m.end); }
void walk(auto& f, Is<OutputAck> auto& m) { f(1, m.op_id), f(2, m.stream), f(3, m.offset); }
void walk(auto& f, Is<Exited> auto& m) {
  f(1, m.op_id), f(2, m.wait_status), f(3, m.user_usec), f(4, m.system_usec), f(5, m.max_rss_kb), f(6, m.shell_modified);
}
void walk(auto& f, Is<Stdin> auto& m) { f(1, m.op_id), f(2, m.offset), f(3, m.bytes), f(4, m.end); }
void walk(auto& f, Is<StdinAck> auto& m) { f(1, m.op_id), f(2, m.offset), f(3, m.closed); }
void walk(auto& f, Is<Signal> auto& m) { f(1, m.op_id), f(2, m.number), f(3, m.scope); }
void walk(auto& f, Is<Resize> auto& m) { f(1, m.op_id), f(2, m.rows), f(3, m.columns); }
void walk(auto& f, Is<Release> auto& m) { f(1, m.op_id); }
void walk(auto& f, Is<SessionClose> auto& m) { f(1, m.session); }
void walk(auto& f, Is<FileRequest> auto& m) {
  f(1, m.request_id), f(2, m.verb), f(3, m.path), f(4, m.target), f(5, m.user), f(6, m.offset), f(7, m.length);
  f(8, m.mode), f(9, m.parents), f(10, m.recursive), f(11, m.limit);
}
void walk(auto& f, Is<FileInfo> auto& m) {
  f(1, m.path), f(2, m.type), f(3, m.size), f(4, m.mode), f(5, m.uid), f(6, m.gid), f(7, m.mtime_ns), f(8, m.user);
  f(9, m.group), f(10, m.target);
}
void walk(auto& f, Is<WatchEvent> auto& m) { f(1, m.kind), f(2, m.path); }
void walk(auto& f, Is<FileReply> auto& m) {
  f(1, m.request_id), f(2, m.more), f(3, m.error_number), f(4, m.message), f(5, m.entries), f(6, m.events);
  f(7, m.truncated);
}
void walk(auto& f, Is<FileData> auto& m) { f(1, m.request_id), f(2, m.offset), f(3, m.bytes), f(4, m.end); }
void walk(auto& f, Is<FileAck> auto& m) { f(1, m.request_id), f(2, m.offset); }
void walk(auto& f, Is<FileCancel> auto& m) { f(1, m.request_id); }
void walk(auto& f, Is<ProtocolError> auto& m) { f(1, m.message); }

constexpr int last_of(OperationState) { return 2; }
constexpr int last_of(OutputStream) { return 2; }
constexpr int last_of(SignalScope) { return 2; }
constexpr int last_of(FileVerb) { return 10; }
constexpr int last_of(FileType) { return 6; }
constexpr int last_of(WatchKind) { return 6; }

template <typename T>
struct is_vector : std::false_type {};
template <typename T>
struct is_vector<std::vector<T>> : std::true_type {};

struct Writer {
  protozero::pbf_writer out;

  template <typename T>
  void operator()(protozero::pbf_tag_type tag, const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!value.empty()) out.add_bytes(tag, value);
    } else if constexpr (std::is_same_v<T, bool>) {
      if (value) out.add_bool(tag, true);
    } else if constexpr (std::is_enum_v<T>) {
      out.add_uint32(tag, static_cast<std::uint32_t>(value));
    } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      if (value != 0) out.add_int64(tag, value);
    } else if constexpr (std::is_integral_v<T>) {
      out.add_uint64(tag, value);  // also a zero: not every default is one
    } else if constexpr (is_vector<T>::value) {
      for (const auto& element : value) add_element(tag, element);
    } else {
      add_element(tag, value);
    }
  }

  // An element of a list is written even when it is empty.
  void add_element(protozero::pbf_tag_type tag, const std::string& value) { out.add_bytes(tag, value); }
  template <typename M>
  void add_element(protozero::pbf_tag_type tag, const M& message) {
    Writer inner{protozero::pbf_writer{out, tag}};
    walk(inner, message);
  }
};

struct OutOfRange {};

struct Reader {
  protozero::pbf_reader in;
  bool taken = false;

  template <typename M>
  void read(M& message) {
    while (in.next()) {
      taken = false;
      walk(*this, message);
      if (!taken) in.skip();
    }
  }

  template <typename T>
  void operator()(protozero::pbf_tag_type tag, T& value) {
    if (taken || in.tag() != tag) return;
    taken = true;
    if constexpr (std::is_same_v<T, std::string>) {
      value = bytes();
    } else if constexpr (is_vector<T>::value) {
      value.emplace_back();
      if constexpr (std::is_same_v<typename T::value_type, std::string>) {
        value.back() = bytes();
      } else {
        nested(value.back());
      }
    } else if constexpr (std::is_enum_v<T>) {
      const std::uint64_t number = varint();
      if (number < 1 || number > static_cast<std::uint64_t>(last_of(T{}))) throw OutOfRange{};
      value = static_cast<T>(number);
    } else if constexpr (std::is_same_v<T, bool>) {
      value = varint() != 0;
    } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
      const auto number = static_cast<std::int64_t>(varint());
      if (number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max()) throw OutOfRange{};
      value = static_cast<T>(number);
    } else if constexpr (std::is_integral_v<T>) {
      const std::uint64_t number = varint();
      if (number > std::numeric_limits<T>::max()) throw OutOfRange{};
      value = static_cast<T>(number);
    } else {
      nested(value);
    }
  }

  std::uint64_t varint() {
    if (in.wire_type() != protozero::pbf_wire_type::varint) throw OutOfRange{};
    return in.get_uint64();
  }
  std::string bytes() {
    if (in.wire_type() != protozero::pbf_wire_type::length_delimited) throw OutOfRange{};
    return in.get_bytes();
  }
  template <typename M>
  void nested(M& message) {
    if (in.wire_type() != protozero::pbf_wire_type::length_delimited) throw OutOfRange{};
    Reader inner{in.get_message()};
    inner.read(message);
  }
};

template <typename M>
std::string write_message(const M& message) {
  std::string body;
  {
    Writer writer{protozero::pbf_writer{body}};
    walk(writer, message);
  }
  return body;
}

}  // namespace

template <typename Message>
Result<Message> decode(std::string_view body) {
  Message message;
  try {
    Reader reader{protozero::pbf_reader{body.data(), body.size()}};
    reader.read(message);
  } catch (const protozero::exception&) {
    return invalid_argument("the body is not a protobuf message");
  } catch (const OutOfRange&) {
    return invalid_argument("a field has a value or a wire type that its message does not allow");
  }
  return message;
}

std::string encode(const Hello& m) { return write_message(m); }
std::string encode(const HelloReply& m) { return write_message(m); }
std::string encode(const Ping& m) { return write_message(m); }
std::string encode(const ExecStart& m) { return write_message(m); }
std::string encode(const ExecStarted& m) { return write_message(m); }
std::string encode(const ExecFailed& m) { return write_message(m); }
std::string encode(const Output& m) { return write_message(m); }
std::string encode(const OutputAck& m) { return write_message(m); }
std::string encode(const Exited& m) { return write_message(m); }
std::string encode(const Stdin& m) { return write_message(m); }
std::string encode(const StdinAck& m) { return write_message(m); }
std::string encode(const Signal& m) { return write_message(m); }
std::string encode(const Resize& m) { return write_message(m); }
std::string encode(const Release& m) { return write_message(m); }
std::string encode(const SessionClose& m) { return write_message(m); }
std::string encode(const FileRequest& m) { return write_message(m); }
std::string encode(const FileReply& m) { return write_message(m); }
std::string encode(const FileData& m) { return write_message(m); }
std::string encode(const FileAck& m) { return write_message(m); }
std::string encode(const FileCancel& m) { return write_message(m); }
std::string encode(const ProtocolError& m) { return write_message(m); }

template Result<Hello> decode<Hello>(std::string_view);
template Result<HelloReply> decode<HelloReply>(std::string_view);
template Result<Ping> decode<Ping>(std::string_view);
template Result<ExecStart> decode<ExecStart>(std::string_view);
template Result<ExecStarted> decode<ExecStarted>(std::string_view);
template Result<ExecFailed> decode<ExecFailed>(std::string_view);
template Result<Output> decode<Output>(std::string_view);
template Result<OutputAck> decode<OutputAck>(std::string_view);
template Result<Exited> decode<Exited>(std::string_view);
template Result<Stdin> decode<Stdin>(std::string_view);
template Result<StdinAck> decode<StdinAck>(std::string_view);
template Result<Signal> decode<Signal>(std::string_view);
template Result<Resize> decode<Resize>(std::string_view);
template Result<Release> decode<Release>(std::string_view);
template Result<SessionClose> decode<SessionClose>(std::string_view);
template Result<FileRequest> decode<FileRequest>(std::string_view);
template Result<FileReply> decode<FileReply>(std::string_view);
template Result<FileData> decode<FileData>(std::string_view);
template Result<FileAck> decode<FileAck>(std::string_view);
template Result<FileCancel> decode<FileCancel>(std::string_view);
template Result<ProtocolError> decode<ProtocolError>(std::string_view);

}  // namespace dsec::protocol
