# Provides GTest::gtest and gtest_main from, in this order, TORCHAMP_GTEST_SOURCE_DIR, an installed
# package, Debian's sources, and, only with TORCHAMP_ALLOW_DOWNLOAD, a downloaded release. An installed
# GoogleTest has the compiler's default ABI, so it does not work with a torch that has the old ABI.

set(TORCHAMP_GTEST_SOURCE_DIR "" CACHE PATH "GoogleTest's source folder")
set(TORCHAMP_GTEST_DEBIAN_DIR /usr/src/googletest CACHE PATH "The folder of the sources in Debian's package")
set(TORCHAMP_GTEST_URL "https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz"
    CACHE STRING "The URL of GoogleTest 1.14.0")
set(TORCHAMP_GTEST_SHA256 8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
    CACHE STRING "The SHA-256 of that download")
set(TORCHAMP_GTEST_REMEDY "the C++ tests need GoogleTest: sudo apt-get install -y googletest, or \
make test GTEST_SOURCE=<the folder of its sources>, or configure with -DTORCHAMP_BUILD_TESTS=OFF")
option(TORCHAMP_ALLOW_DOWNLOAD "Download GoogleTest when it is not installed" OFF)

function(_torchamp_gtest_from_source folder)
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF)
  add_subdirectory("${folder}" "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
  target_compile_options(gtest PRIVATE -O0)  # compiles in half the time
  target_compile_definitions(gtest PUBLIC _GLIBCXX_USE_CXX11_ABI=${TORCHAMP_TORCH_CXX11_ABI})
  foreach(target gtest gtest_main)
    if(NOT TARGET GTest::${target})
      add_library(GTest::${target} ALIAS ${target})
    endif()
  endforeach()
endfunction()

# Downloads and unpacks the release's sources to `folder`.
function(_torchamp_download_gtest folder)
  set(archive "${folder}.tar.gz")
  message(STATUS "torchamp: downloading GoogleTest 1.14.0 from ${TORCHAMP_GTEST_URL}")
  file(DOWNLOAD "${TORCHAMP_GTEST_URL}" "${archive}" STATUS status TIMEOUT 120)
  list(GET status 0 failed)
  if(failed)
    list(GET status 1 reason)
    message(FATAL_ERROR "torchamp: ${TORCHAMP_GTEST_URL}: ${reason}. ${TORCHAMP_GTEST_REMEDY}")
  endif()
  file(SHA256 "${archive}" sha256)
  if(NOT sha256 STREQUAL TORCHAMP_GTEST_SHA256)
    message(FATAL_ERROR "torchamp: ${TORCHAMP_GTEST_URL}: expected a file with the SHA-256 "
      "${TORCHAMP_GTEST_SHA256}, got one with ${sha256}. ${TORCHAMP_GTEST_REMEDY}")
  endif()
  file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${folder}")
endfunction()

if(TORCHAMP_GTEST_SOURCE_DIR)
  _torchamp_gtest_from_source("${TORCHAMP_GTEST_SOURCE_DIR}")
elseif(TORCHAMP_TORCH_CXX11_ABI)
  find_package(GTest QUIET)
endif()
if(NOT TARGET GTest::gtest_main AND EXISTS "${TORCHAMP_GTEST_DEBIAN_DIR}/CMakeLists.txt")
  _torchamp_gtest_from_source("${TORCHAMP_GTEST_DEBIAN_DIR}")
endif()
if(NOT TARGET GTest::gtest_main AND TORCHAMP_ALLOW_DOWNLOAD)
  set(folder "${PROJECT_BINARY_DIR}/googletest-release")
  if(NOT EXISTS "${folder}/googletest-1.14.0")
    _torchamp_download_gtest("${folder}")
  endif()
  _torchamp_gtest_from_source("${folder}/googletest-1.14.0")
endif()
if(NOT TARGET GTest::gtest_main)
  message(FATAL_ERROR "torchamp: ${TORCHAMP_GTEST_REMEDY}, or allow a download with "
    "-DTORCHAMP_ALLOW_DOWNLOAD=ON")
endif()

# The test programs contain torchamp's objects, so they must resolve the objects' OpenMP symbols. They
# use torch's copy of OpenMP, so that there is only one thread pool.
add_library(torchamp_test_openmp INTERFACE)
if(TORCHAMP_TORCH_OPENMP)
  target_link_libraries(torchamp_test_openmp INTERFACE "${TORCHAMP_TORCH_OPENMP}")
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_link_libraries(torchamp_test_openmp INTERFACE OpenMP::OpenMP_CXX)
endif()
