// Compiled kernels, kept on disk from process to process.
#pragma once

#include <string>

namespace torchamp::cuda {

/// A folder of images, each under the key of what it was compiled from. It is used only if it is
/// the user's own and closed to others; images that are not as they were written are not found.
/// Nothing here throws: without a folder every image is compiled again.
class ImageStore {
 public:
  /// Makes the folder if need be. An empty path keeps nothing.
  explicit ImageStore(const std::string& folder);

  /// Empty where nothing is kept.
  const std::string& folder() const { return folder_; }
  /// Why nothing is kept.
  const std::string& reason() const { return reason_; }

  /// Empty where there is none.
  std::string find(const std::string& key) const;
  void keep(const std::string& key, const std::string& image) const;

 private:
  std::string path_of(const std::string& key) const;

  std::string folder_;
  std::string reason_;
};

/// TORCHAMP_CACHE, where "off" turns the store off; else torchamp in XDG_CACHE_HOME, or in .cache
/// at home. Empty where there is none of these.
std::string image_folder();

/// The store in image_folder(), as it was at the first call.
const ImageStore& image_store();

}  // namespace torchamp::cuda
