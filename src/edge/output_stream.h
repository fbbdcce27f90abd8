// OutputStream: one stream (stdout or stderr) of one operation, byte-exact, with
// absolute offsets.
//
//   0 ....... spooled ....... tail ...... stored ... dropped ... window ... total
//
// Bytes up to the limit are stored: the newest of them in memory (`tail`), older
// ones in the spool. Bytes beyond the limit are counted, not stored; while a
// reader follows the stream live, they stay in a window until it has taken them,
// and the agent is not told to send more: the command waits for its reader, as
// on any pipe. Without a reader they are dropped at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "edge/output_spool.h"

namespace dsec::edge {

class OutputStream {
 public:
  // A reader that follows the stream; its position holds the window.
  struct Follower {
    std::uint64_t position = 0;
  };

  explicit OutputStream(std::uint8_t number) : number_(number) {}

  // What the agent sent, at an absolute offset; what is known already is skipped.
  // `room` is what the operation may still store and is reduced.
  void take(std::uint64_t offset, std::string_view bytes, std::uint64_t& room);
  void set_ended() { ended_ = true; }

  // Moves the tail to the spool. After an error the tail stays.
  Result<void> spill(OutputSpool& spool, std::string_view op_id);
  // After a failed spill: nothing more is stored, so that memory stays bounded.
  void stop_storing() { storing_ = false; }
  std::size_t tail_bytes() const { return tail_.size(); }

  // Everything below was stored or is not needed any more.
  std::uint64_t acknowledged() const;

  // What a reader at `offset` gets next. Memory, or a chunk to be read from the
  // spool, or nothing yet. The offset may be moved forward over dropped bytes.
  struct Piece {
    std::uint64_t offset = 0;
    std::string bytes;
    std::optional<OutputSpool::Chunk> chunk;
  };
  std::optional<Piece> at(std::uint64_t offset, std::size_t most) const;
  // The offset that a reader at `offset` goes on with; larger over dropped bytes.
  std::uint64_t next_readable(std::uint64_t offset) const;

  void add_follower(Follower& follower) { followers_.push_back(&follower); }
  void remove_follower(Follower& follower);
  // After a follower has moved.
  void trim();

  std::uint64_t total() const { return total_; }
  std::uint64_t stored() const { return tail_offset_ + tail_.size(); }
  bool ended() const { return ended_; }
  const std::string& tail() const { return tail_; }
  std::uint64_t tail_offset() const { return tail_offset_; }

  // After a restart.
  void restore_chunk(OutputSpool::Chunk chunk);
  // `ended`: no more can come; else the agent goes on from what was acknowledged.
  void restore_tail(std::uint64_t tail_offset, std::string tail, std::uint64_t total, bool ended);

 private:
  const std::uint8_t number_;
  std::vector<OutputSpool::Chunk> chunks_;  // contiguous from 0
  std::uint64_t tail_offset_ = 0;
  std::string tail_;
  std::uint64_t window_offset_ = 0;  // window_ ends at total_; meant when it is not empty
  std::string window_;
  std::uint64_t total_ = 0;
  bool ended_ = false;
  bool storing_ = true;
  std::vector<Follower*> followers_;
};

}  // namespace dsec::edge
