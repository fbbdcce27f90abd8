#include "image/passed_images.h"

#include <memory>

#include "erofs/source.h"
#include "image/confined_worker.h"

namespace dsec::image {

namespace {

// Opens what was passed, in order.
class PassedFiles {
 public:
  Result<std::unique_ptr<erofs::Source>> next() {
    DSEC_ASSIGN(std::unique_ptr<erofs::FileSource> source, erofs::FileSource::open(sys::Fd(descriptor_++)));
    return std::unique_ptr<erofs::Source>(std::move(source));
  }

 private:
  int descriptor_ = kFirstPassed;
};

}  // namespace

Result<std::vector<erofs::Reader>> open_passed_images(const std::vector<std::uint64_t>& data_files) {
  PassedFiles files;
  std::vector<erofs::Reader> images;
  for (const std::uint64_t count : data_files) {
    DSEC_ASSIGN(std::unique_ptr<erofs::Source> metadata, files.next());
    std::vector<std::unique_ptr<erofs::Source>> data;
    for (std::uint64_t i = 0; i < count; i++) {
      DSEC_ASSIGN(std::unique_ptr<erofs::Source> one, files.next());
      data.push_back(std::move(one));
    }
    DSEC_ASSIGN(erofs::Reader image, erofs::Reader::open(std::move(metadata), std::move(data)));
    images.push_back(std::move(image));
  }
  return images;
}

}  // namespace dsec::image
