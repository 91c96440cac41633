#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::base {

/// Names of functions of this process, from dynamic symbols or from the
/// program's file. Not thread-safe.
class Symbols {
 public:
  /// Returns "weft::mesh::ShmDoorbell::wait(...) in weft", "libmkl_core.so.2
  /// +0x1234" or "0x7f...". `is_return` means that the address is a return
  /// address.
  std::string describe(const void* address, bool is_return);

 private:
  struct Function {
    uint64_t begin = 0;
    uint64_t size = 0;
    std::string name;
  };
  using Functions = std::vector<Function>;
  friend std::string symbol_at(const std::string& file, uint64_t offset);

  /// Returns the functions by address.
  static Functions read_functions(const std::string& path);
  std::string_view find(const std::string& path, uint64_t offset);

  std::map<const void*, std::string> known_;
  std::map<std::string, Functions> files_;
};

/// Returns the mangled name of the function at `offset` of an ELF file. Empty
/// if there is none or the file is not an ELF file.
std::string symbol_at(const std::string& file, uint64_t offset);

} // namespace weft::base
