//! Symbols with versions.
//!
//! A program is linked to `ibv_open_device@IBVERBS_1.1`, not to `ibv_open_device`: an ELF symbol
//! has its version in its name. Rust cannot put such a name into the list of symbols that it gives
//! to the linker, but an assembler can define it. So each exported symbol is a jump to the Rust
//! function. `versions.map` declares the versions themselves.

/// Exports one function under a name with a version.
macro_rules! symbol {
    ($symbol:expr, $function:path) => {
        core::arch::global_asm!(
            concat!(".pushsection \".text.", $symbol, "\",\"ax\",@progbits"),
            concat!(".globl \"", $symbol, "\""),
            concat!(".type \"", $symbol, "\", @function"),
            concat!("\"", $symbol, "\":"),
            #[cfg(target_arch = "x86_64")]
            "jmp {function}",
            #[cfg(target_arch = "aarch64")]
            "b {function}",
            concat!(".size \"", $symbol, "\", . - \"", $symbol, "\""),
            ".popsection",
            function = sym $function,
        );
    };
}

/// Exports functions: `"ibv_open_device@@IBVERBS_1.1" = device::open_device;`
///
/// `@@` marks the version that new programs are linked to, `@` an older one.
macro_rules! export {
    ($($symbol:literal = $function:path;)*) => { $($crate::export::symbol!($symbol, $function);)* };
}

pub(crate) use {export, symbol};
