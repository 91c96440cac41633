#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::base {

/// Names of functions of this process, from its dynamic symbols or, where a
/// program does not export them, from its file. Not thread-safe.
class Symbols {
 public:
  /// "weft::mesh::ShmDoorbell::wait(...) in weft", "libmkl_core.so.2 +0x1234",
  /// "0x7f..." . `is_return`: the address behind a call.
  std::string describe(const void* address, bool is_return);

 private:
  struct Function {
    uint64_t begin = 0;
    uint64_t size = 0;
    std::string name;
  };
  using Functions = std::vector<Function>;
  friend std::string symbol_at(const std::string& file, uint64_t offset);

  /// In the order of their addresses.
  static Functions read_functions(const std::string& path);
  std::string_view find(const std::string& path, uint64_t offset);

  std::map<const void*, std::string> known_;
  std::map<std::string, Functions> files_;
};

/// The function of an ELF file's symbol table that has `offset` in it, as it is
/// written there; empty if there is none, or the file is no such file.
std::string symbol_at(const std::string& file, uint64_t offset);

} // namespace weft::base
