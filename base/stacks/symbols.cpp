#include "base/stacks/symbols.h"

#include <cxxabi.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

namespace weft::base {
namespace {

constexpr size_t kMaxSymbolBytes = 100;

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  std::string shown = name ? name.get() : symbol;
  if (shown.size() > kMaxSymbolBytes) {
    shown.resize(kMaxSymbolBytes);
    shown += "...";
  }
  return shown;
}

std::string hex_text(uint64_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[number % 16]);
    number /= 16;
  } while (number != 0);
  return "0x" + text;
}

/// Reads `count` values of T at `offset` of a file. Returns an empty vector if
/// the file is too short.
template <class T>
std::vector<T>
read_array(std::ifstream& file, uint64_t offset, uint64_t count) {
  file.clear();
  file.seekg(0, std::ios::end);
  const auto size =
      static_cast<uint64_t>(std::max<std::streamoff>(file.tellg(), 0));
  if (offset > size || count > (size - offset) / sizeof(T)) {
    return {};
  }
  std::vector<T> values(count);
  const auto bytes = static_cast<std::streamsize>(count * sizeof(T));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(values.data()), bytes);
  return file.gcount() == bytes ? values : std::vector<T>();
}

std::vector<Elf64_Shdr> sections_of(std::ifstream& file) {
  const auto header = read_array<Elf64_Ehdr>(file, 0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      header[0].e_ident[EI_CLASS] != ELFCLASS64) {
    return {};
  }
  return read_array<Elf64_Shdr>(file, header[0].e_shoff, header[0].e_shnum);
}

/// Returns a path that can be opened. The program's own name may be relative to
/// an earlier working directory.
std::string module_path(const link_map* module, const char* name) {
  return module != nullptr && module->l_name[0] == '\0' ? "/proc/self/exe"
                                                        : name;
}

std::string last_part(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

} // namespace

Symbols::Functions Symbols::read_functions(const std::string& path) {
  Functions functions;
  std::ifstream file(path, std::ios::binary);
  const auto sections = sections_of(file);
  for (const auto& table : sections) {
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= sections.size()) {
      continue;
    }
    const auto& strings = sections[table.sh_link];
    auto names = read_array<char>(file, strings.sh_offset, strings.sh_size);
    names.push_back('\0');
    for (const auto& symbol : read_array<Elf64_Sym>(
             file, table.sh_offset, table.sh_size / sizeof(Elf64_Sym))) {
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_size > 0 &&
          symbol.st_name < names.size()) {
        functions.push_back(
            {symbol.st_value, symbol.st_size, &names[symbol.st_name]});
      }
    }
  }
  std::ranges::sort(functions, {}, &Function::begin);
  return functions;
}

std::string_view Symbols::find(const std::string& path, uint64_t offset) {
  auto at = files_.find(path);
  if (at == files_.end()) {
    at = files_.emplace(path, read_functions(path)).first;
  }
  const auto& functions = at->second;
  const auto after =
      std::ranges::upper_bound(functions, offset, {}, &Function::begin);
  if (after == functions.begin()) {
    return {};
  }
  const auto& found = *(after - 1);
  return offset - found.begin < found.size ? std::string_view(found.name)
                                           : std::string_view();
}

std::string symbol_at(const std::string& file, uint64_t offset) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    return {}; // Reading a pipe could block.
  }
  return std::string(Symbols().find(file, offset));
}

std::string Symbols::describe(const void* address, bool is_return) {
  // A return address is behind the end of its function if the function ends
  // with a call that never returns.
  const void* inside = static_cast<const char*>(address) - (is_return ? 1 : 0);
  const auto known = known_.find(inside);
  if (known != known_.end()) {
    return known->second;
  }
  Dl_info found{};
  link_map* module = nullptr;
  std::string text;
  if (dladdr1(
          inside, &found, reinterpret_cast<void**>(&module), RTLD_DL_LINKMAP) ==
      0) {
    text = hex_text(reinterpret_cast<uintptr_t>(address));
  } else {
    const std::string path = module_path(module, found.dli_fname);
    const auto offset = reinterpret_cast<uintptr_t>(inside) -
                        reinterpret_cast<uintptr_t>(found.dli_fbase);
    const std::string symbol = found.dli_sname != nullptr
                                   ? found.dli_sname
                                   : std::string(find(path, offset));
    const std::string name = last_part(found.dli_fname);
    text = symbol.empty() ? name + " +" + hex_text(offset)
                          : demangled(symbol.c_str()) + " in " + name;
  }
  return known_[inside] = text;
}

} // namespace weft::base
