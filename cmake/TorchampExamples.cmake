# Each CMakeLists.txt of examples/cpp is a stand-alone project that calls find_package(torchamp). Here
# the package is this build, so the examples use its target and need no installed package.

file(GLOB _TORCHAMP_EXAMPLES CONFIGURE_DEPENDS
  examples/cpp/*/CMakeLists.txt examples/cpp/experiments/*/CMakeLists.txt)
set(torchamp_DIR "${PROJECT_BINARY_DIR}/this_build")
file(WRITE "${torchamp_DIR}/torchampConfig.cmake" "# torchamp::torchamp is a target of this build.\n")
foreach(project IN LISTS _TORCHAMP_EXAMPLES)
  get_filename_component(folder "${project}" DIRECTORY)
  file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}" "${folder}")
  add_subdirectory("${folder}" "${PROJECT_BINARY_DIR}/${name}")
endforeach()
