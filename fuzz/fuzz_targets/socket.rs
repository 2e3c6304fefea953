//! `cargo fuzz run socket`; on stable Rust, a replay of the files named.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| remora_fuzz::socket(data));

#[cfg(not(fuzzing))]
fn main() {
    remora_fuzz::replay_arguments(remora_fuzz::socket);
}
