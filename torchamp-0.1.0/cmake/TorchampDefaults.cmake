# The options, and the defaults of a top-level build: Release, ccache if installed, the tests, and the
# Python module if torch has its Python part (LibTorch has not). A project that adds torchamp as a
# subdirectory gets only the library, and keeps its own settings.

set(TORCHAMP_PYTHON_POSSIBLE OFF)
if(TORCHAMP_TOP_LEVEL AND EXISTS "${TORCHAMP_TORCH_DIR}/lib/libtorch_python.so")
  set(TORCHAMP_PYTHON_POSSIBLE ON)
endif()

option(TORCHAMP_BUILD_PYTHON "Build the Python module" ${TORCHAMP_PYTHON_POSSIBLE})
option(TORCHAMP_BUILD_TESTS "Build the C++ tests" ${TORCHAMP_TOP_LEVEL})
option(TORCHAMP_BUILD_EXAMPLES "Build the C++ examples" OFF)
option(TORCHAMP_BUILD_BENCHMARKS "Build the C++ benchmarks" OFF)
option(TORCHAMP_UNITY_BUILD "Compile the files that include torch's large headers together" ON)
option(TORCHAMP_INSTALL "Generate the install rules" ${TORCHAMP_TOP_LEVEL})
set(TORCHAMP_LOCAL_VERSION "" CACHE STRING "What follows the version and a plus sign, as torch2.13")

if(TORCHAMP_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(TORCHAMP_CCACHE ccache)
  mark_as_advanced(TORCHAMP_CCACHE)
  if(TORCHAMP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TORCHAMP_CCACHE}")
  endif()
endif()
