#include "image/layer_view.h"

namespace dsec::image {

Result<erofs::Reader> open_reader(const LayerStore& store, const std::string& digest) {
  DSEC_ASSIGN(LayerStore::OpenFiles files, store.open_files(digest));
  DSEC_ASSIGN(std::unique_ptr<erofs::FileSource> metadata, erofs::FileSource::open(std::move(files.metadata)));
  std::vector<std::unique_ptr<erofs::Source>> data;
  for (sys::Fd& file : files.data) {
    DSEC_ASSIGN(std::unique_ptr<erofs::FileSource> source, erofs::FileSource::open(std::move(file)));
    data.push_back(std::move(source));
  }
  return erofs::Reader::open(std::move(metadata), std::move(data)).within("layer " + digest);
}

Result<erofs::ImageFacts> verify_layer(const LayerStore& store, const std::string& digest) {
  DSEC_TRY(store.verify(digest));
  DSEC_ASSIGN(LayerStore::OpenFiles files, store.open_files(digest));
  std::vector<std::uint64_t> sizes;
  for (sys::Fd& file : files.data) {
    DSEC_ASSIGN(const std::unique_ptr<erofs::FileSource> source, erofs::FileSource::open(std::move(file)));
    sizes.push_back(source->size());
  }
  DSEC_ASSIGN(std::unique_ptr<erofs::FileSource> metadata, erofs::FileSource::open(std::move(files.metadata)));
  DSEC_ASSIGN(erofs::Verdict verdict, erofs::check_image(std::move(metadata), sizes));
  if (!verdict.sound()) return Error(ErrorCode::kDataFault, "layer " + digest + ": " + verdict.problem->text());
  return std::move(verdict.facts);
}

}  // namespace dsec::image
