// Images as OCI layouts, for tests: a tar of a layout from the tars of its layers.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "erofs/digest.h"
#include "image/image_fixture.h"

namespace dsec::image {

inline std::string sha256(const std::string& bytes) {
  erofs::Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

// What an archive is made of; each test bends one part.
struct Image {
  std::vector<std::string> layers;         // tars
  std::vector<std::string> compressions;   // a program for each, "cat" for none
  std::vector<std::string> claimed_diff_ids = {};  // none: the true ones
  std::string architecture = "amd64";
  std::string settings = R"({"Env":["PATH=/usr/bin","EMPTY=","NOVALUE"],"WorkingDir":"/srv","User":"1000:1000","Entrypoint":["/entry"],"Cmd":["serve","--now"]})";
};

class OciTest : public ImageTest {
 protected:
  std::string pack(const std::string& program, const std::string& bytes) {
    EXPECT_TRUE(sys::replace_file(directory_ + "/raw", bytes, 0600).ok());
    EXPECT_EQ(std::system((program + " < " + directory_ + "/raw > " + directory_ + "/packed").c_str()), 0);
    return sys::read_file(directory_ + "/packed", 16 << 20).value();
  }
  static std::string config_of(const Image& image) {
    std::string ids;
    for (std::size_t i = 0; i < image.layers.size(); i++) {
      const std::string id = image.claimed_diff_ids.empty() ? sha256(image.layers[i]) : image.claimed_diff_ids[i];
      ids += (i == 0 ? "\"sha256:" : ",\"sha256:") + id + "\"";
    }
    return R"({"architecture":")" + image.architecture + R"(","os":"linux","config":)" + image.settings + R"(,"rootfs":{"type":"layers","diff_ids":[)" + ids + "]}}";
  }
  std::string layout(const Image& image, const std::string& platform = "") {
    TarFixture tar;
    tar.file("oci-layout", R"({"imageLayoutVersion":"1.0.0"})").directory("blobs").directory("blobs/sha256");
    std::string layers;
    for (std::size_t i = 0; i < image.layers.size(); i++) {
      const std::string blob = pack(image.compressions[i], image.layers[i]);
      layers += (i == 0 ? "" : ",") + descriptor("application/vnd.oci.image.layer.v1.tar", blob);
      tar.file("blobs/sha256/" + sha256(blob), blob);
    }
    const std::string config = config_of(image);
    const std::string manifest = R"({"schemaVersion":2,"config":)" + descriptor("application/vnd.oci.image.config.v1+json", config) + R"(,"layers":[)" + layers + "]}";
    tar.file("blobs/sha256/" + sha256(config), config).file("blobs/sha256/" + sha256(manifest), manifest);
    std::string entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest);
    if (!platform.empty()) entry.insert(entry.size() - 1, ",\"platform\":" + platform);
    tar.file("index.json", R"({"schemaVersion":2,"manifests":[)" + entry + extra_manifests_ + "]}");
    return tar.finished();
  }
  static std::string descriptor(const std::string& type, const std::string& blob) {
    return R"({"mediaType":")" + type + R"(","digest":"sha256:)" + sha256(blob) + R"(","size":)" + std::to_string(blob.size()) + "}";
  }
  Result<model::LayerRecord> import(const std::string& archive, ImportOptions options = {}) {
    const Result<ImportedImage> imported = import_image(archive, std::move(options));
    if (!imported.ok()) return imported.error();
    return imported->record;
  }
  Result<ImportedImage> import_image(const std::string& archive, ImportOptions options = {}) {
    const sys::Fd fd = input(archive);
    return importer_->import_oci(fd.get(), options);
  }
  std::string extra_manifests_;
};

}  // namespace dsec::image
