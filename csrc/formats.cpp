#include "formats.h"

#include <cstring>
#include <stdexcept>

namespace headrace {
namespace {

constexpr FormatInfo kFormats[kNumFormats] = {
    {"F32", 1, 4},     {"F16", 1, 2},     {"BF16", 1, 2},    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},  {"Q4_1", 32, 20},  {"Q5_0", 32, 22},  {"Q5_1", 32, 24},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210},
};

template <typename T>
T read(const std::uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(h & 0x7fff) << 13;
  if (magnitude >= (0x7c00u << 13)) return from_bits(sign | 0x7f800000u | magnitude);
  const float value = from_bits(magnitude) * 0x1p112f;
  return sign ? -value : value;
}

// Low nibbles of each group of bytes first, then its high ones.
void read_nibbles(const std::uint8_t* packed, int group, int count, std::uint8_t* codes) {
  for (int start = 0; start < count; start += 2 * group, packed += group) {
    for (int i = 0; i < group; ++i) {
      codes[start + i] = packed[i] & 15;
      codes[start + group + i] = packed[i] >> 4;
    }
  }
}

void add_fifth_bits(std::uint32_t bits, std::uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    codes[i] = static_cast<std::uint8_t>(codes[i] | ((bits >> i & 1) << 4));
  }
}

// Eight 6-bit scales and minimums in twelve bytes: the first four of each in the low six bits of
// bytes 0-3 and 4-7, the rest in the nibbles of bytes 8-11 and the top bits of the others.
void read_k_scales(const std::uint8_t* packed, StoredBlock& block) {
  for (int i = 0; i < 4; ++i) {
    const int low = packed[i], middle = packed[4 + i], high = packed[8 + i];
    block.scales[i] = static_cast<std::uint8_t>(low & 63);
    block.minimums[i] = static_cast<std::uint8_t>(middle & 63);
    block.scales[4 + i] = static_cast<std::uint8_t>((high & 15) | (low >> 6 << 4));
    block.minimums[4 + i] = static_cast<std::uint8_t>(high >> 4 | (middle >> 6 << 4));
  }
}

}  // namespace

const FormatInfo& format_info(Format format) { return kFormats[static_cast<int>(format)]; }

Format format_by_name(const std::string& name) {
  for (int i = 0; i < kNumFormats; ++i) {
    if (name == kFormats[i].name) return static_cast<Format>(i);
  }
  throw std::invalid_argument("unknown weight format '" + name + "'");
}

std::size_t row_bytes(Format format, int width) {
  const FormatInfo& info = format_info(format);
  return static_cast<std::size_t>(width / info.block_size) *
         static_cast<std::size_t>(info.block_bytes);
}

void read_block(Format format, const std::uint8_t* bytes, StoredBlock& block) {
  switch (format) {
    case Format::Q8_0:
      block.d = read<std::uint16_t>(bytes);
      std::memcpy(block.codes, bytes + 2, 32);
      break;
    case Format::Q4_0:
      block.d = read<std::uint16_t>(bytes);
      read_nibbles(bytes + 2, 16, 32, block.codes);
      break;
    case Format::Q4_1:
      block.d = read<std::uint16_t>(bytes);
      block.m = read<std::uint16_t>(bytes + 2);
      read_nibbles(bytes + 4, 16, 32, block.codes);
      break;
    case Format::Q5_0:
      block.d = read<std::uint16_t>(bytes);
      read_nibbles(bytes + 6, 16, 32, block.codes);
      add_fifth_bits(read<std::uint32_t>(bytes + 2), block.codes);
      break;
    case Format::Q5_1:
      block.d = read<std::uint16_t>(bytes);
      block.m = read<std::uint16_t>(bytes + 2);
      read_nibbles(bytes + 8, 16, 32, block.codes);
      add_fifth_bits(read<std::uint32_t>(bytes + 4), block.codes);
      break;
    case Format::Q4_K:
    case Format::Q5_K:
      block.d = read<std::uint16_t>(bytes);
      block.m = read<std::uint16_t>(bytes + 2);
      read_k_scales(bytes + 4, block);
      if (format == Format::Q4_K) {
        read_nibbles(bytes + 16, 32, 256, block.codes);
      } else {
        read_nibbles(bytes + 48, 32, 256, block.codes);
        for (int i = 0; i < 256; ++i) {
          const int bit = bytes[16 + i % 32] >> (i / 32) & 1;
          block.codes[i] = static_cast<std::uint8_t>(block.codes[i] | bit << 4);
        }
      }
      break;
    case Format::Q6_K:
      read_nibbles(bytes, 64, 256, block.codes);
      for (int i = 0; i < 256; ++i) {
        const int bits = bytes[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        block.codes[i] = static_cast<std::uint8_t>(block.codes[i] | bits << 4);
      }
      std::memcpy(block.scales, bytes + 192, 16);
      block.d = read<std::uint16_t>(bytes + 208);
      break;
    default:
      throw std::logic_error("read_block: not a block format");
  }
}

void dequantize_row(Format format, const std::uint8_t* row, int width, float* out) {
  if (format == Format::F32) {
    std::memcpy(out, row, sizeof(float) * static_cast<std::size_t>(width));
    return;
  }
  if (format == Format::F16 || format == Format::BF16) {
    for (int i = 0; i < width; ++i) {
      const auto bits = read<std::uint16_t>(row + 2 * i);
      out[i] = format == Format::F16 ? half_to_float(bits)
                                     : from_bits(static_cast<std::uint32_t>(bits) << 16);
    }
    return;
  }
  const FormatInfo& info = format_info(format);
  StoredBlock block;
  for (int start = 0; start < width; start += info.block_size, row += info.block_bytes) {
    read_block(format, row, block);
    const float d = half_to_float(block.d);
    for (int i = 0; i < info.block_size; ++i) {
      const auto code = static_cast<float>(block.codes[i]);
      float& value = out[start + i];
      switch (format) {
        case Format::Q8_0: value = d * static_cast<float>(static_cast<std::int8_t>(block.codes[i]));
          break;
        case Format::Q4_0: value = d * (code - 8.0f); break;
        case Format::Q5_0: value = d * (code - 16.0f); break;
        case Format::Q4_1:
        case Format::Q5_1: value = d * code + half_to_float(block.m); break;
        case Format::Q6_K:
          value = d * static_cast<float>(static_cast<std::int8_t>(block.scales[i / 16])) *
                  (code - 32.0f);
          break;
        default:  // Q4_K, Q5_K
          value = d * static_cast<float>(block.scales[i / 32]) * code -
                  half_to_float(block.m) * static_cast<float>(block.minimums[i / 32]);
      }
    }
  }
}

}  // namespace headrace
