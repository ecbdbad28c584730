// Must compile with many warnings as errors: programs have them on.
#include <torchamp/amp.h>
#include <torchamp/torch_amp.h>
