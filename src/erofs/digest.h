// SHA-256, as the names of layers and blobs are made of it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

struct evp_md_ctx_st;

namespace dsec::erofs {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::string_view bytes);
  // The 32 bytes. Ends the computation.
  std::string raw();
  // The same in 64 lower-case hex digits.
  std::string hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// "sha256:<hex>" of the whole file, by pread: the file offset is not used.
// The pages read are dropped from the page cache afterwards, since a layer is
// read through its own mount later, not through this file.
Result<std::string> digest_of_file(int fd);

}  // namespace dsec::erofs
