# torchamp-doctor, which reports what libtorchamp.so finds on a machine. Once installed, it looks for
# torch first beside the wheel, then in torch's folder at build time. A wheel to publish, which has a
# local version, is for other machines, where that folder means nothing.

set(_TORCHAMP_DOCTOR_RPATH "$ORIGIN/../lib;$ORIGIN/../../torch/lib")
if(NOT TORCHAMP_LOCAL_VERSION)
  list(APPEND _TORCHAMP_DOCTOR_RPATH "${TORCHAMP_TORCH_DIR}/lib")
endif()

add_executable(torchamp_doctor csrc/tools/doctor/main.cpp)
target_include_directories(torchamp_doctor PRIVATE csrc/tools)
target_link_libraries(torchamp_doctor PRIVATE torchamp::torchamp)
set_target_properties(torchamp_doctor PROPERTIES
  OUTPUT_NAME torchamp-doctor CXX_EXTENSIONS OFF
  RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin"
  INSTALL_RPATH "${_TORCHAMP_DOCTOR_RPATH}")
