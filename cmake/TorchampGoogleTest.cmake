# GTest::gtest_main, from (in this order) TORCHAMP_GTEST_SOURCE_DIR, an installed package, Debian's
# /usr/src/googletest, and, only with TORCHAMP_ALLOW_DOWNLOAD, the network. An installed GoogleTest has
# the compiler's usual ABI, so it cannot serve a torch with the old one.

set(TORCHAMP_GTEST_SOURCE_DIR "" CACHE PATH "GoogleTest's source folder")
option(TORCHAMP_ALLOW_DOWNLOAD "Fetch GoogleTest when it is not installed" OFF)

function(_torchamp_gtest_from_source folder)
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF)
  add_subdirectory("${folder}" "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
  target_compile_definitions(gtest PUBLIC _GLIBCXX_USE_CXX11_ABI=${TORCHAMP_TORCH_CXX11_ABI})
  if(NOT TARGET GTest::gtest_main)
    add_library(GTest::gtest_main ALIAS gtest_main)
  endif()
endfunction()

if(TORCHAMP_GTEST_SOURCE_DIR)
  _torchamp_gtest_from_source("${TORCHAMP_GTEST_SOURCE_DIR}")
elseif(TORCHAMP_TORCH_CXX11_ABI)
  find_package(GTest QUIET)
endif()
if(NOT TARGET GTest::gtest_main AND EXISTS /usr/src/googletest/CMakeLists.txt)
  _torchamp_gtest_from_source(/usr/src/googletest)
endif()
if(NOT TARGET GTest::gtest_main AND TORCHAMP_ALLOW_DOWNLOAD)
  include(FetchContent)
  FetchContent_Declare(googletest URL https://github.com/google/googletest/archive/v1.14.0.tar.gz)
  FetchContent_Populate(googletest)
  _torchamp_gtest_from_source("${googletest_SOURCE_DIR}")
endif()
if(NOT TARGET GTest::gtest_main)
  message(FATAL_ERROR
    "torchamp: the C++ tests need GoogleTest: apt-get install googletest, or pass "
    "-DTORCHAMP_GTEST_SOURCE_DIR=<folder>, or -DTORCHAMP_ALLOW_DOWNLOAD=ON, or leave the tests out "
    "with -DTORCHAMP_BUILD_TESTS=OFF")
endif()

# The test programs hold torchamp's objects, whose OpenMP symbols a program must resolve itself: with
# torch's copy, so that there is one pool of threads.
add_library(torchamp_test_openmp INTERFACE)
if(TORCHAMP_TORCH_OPENMP)
  target_link_libraries(torchamp_test_openmp INTERFACE "${TORCHAMP_TORCH_OPENMP}")
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_link_libraries(torchamp_test_openmp INTERFACE OpenMP::OpenMP_CXX)
endif()
