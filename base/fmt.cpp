// Instantiates fmt's functions, which otherwise every source that formats text
// would compile. base compiles this file with the distribution's fmt headers,
// and mesh compiles it with those of libtorch, which may be of another version.
// fmt's headers expect exactly these instantiations from fmt's library.

#include <locale>

#include <fmt/format.h>

// The symbols are weak, because a program may also be linked with fmt's
// library.
#undef FMT_FUNC
#define FMT_FUNC [[gnu::weak]]
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE

#if FMT_VERSION >= 120000
template FMT_API locale_ref::locale_ref(const std::locale& loc);
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
#endif

namespace detail {

#if FMT_VERSION < 120000
template FMT_API locale_ref::locale_ref(const std::locale& loc);
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
#endif

template FMT_API auto dragonbox::to_decimal(float x) noexcept
    -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept
    -> dragonbox::decimal_fp<double>;

template FMT_API auto thousands_sep_impl(locale_ref)
    -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);

template FMT_API auto thousands_sep_impl(locale_ref)
    -> thousands_sep_result<wchar_t>;
template FMT_API auto decimal_point_impl(locale_ref) -> wchar_t;
template FMT_API void buffer<wchar_t>::append(const wchar_t*, const wchar_t*);

} // namespace detail
FMT_END_NAMESPACE
