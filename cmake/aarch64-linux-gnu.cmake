# Compiles for Linux on ARM on another machine, with Debian's g++-aarch64-linux-gnu:
#   cmake -DCMAKE_TOOLCHAIN_FILE=<torchamp>/cmake/aarch64-linux-gnu.cmake -DTORCHAMP_TORCH_ROOT=<torch for aarch64> …

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)  # also in CMAKE_PREFIX_PATH
