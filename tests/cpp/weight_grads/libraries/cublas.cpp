// A library with the functions that torchamp takes from cuBLAS, for tests of how it is found.

extern "C" int cublasCreate_v2() {
  return 0;
}

extern "C" int cublasSetStream_v2() {
  return 0;
}

extern "C" int cublasGemmEx() {
  return 0;
}
