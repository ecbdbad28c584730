#pragma once

#define TORCHAMP_API __attribute__((visibility("default")))
