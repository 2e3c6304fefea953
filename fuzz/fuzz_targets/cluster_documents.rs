//! `cargo fuzz run cluster_documents`; on stable Rust, a replay of the files named.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| remora_fuzz::cluster_documents(data));

#[cfg(not(fuzzing))]
fn main() {
    remora_fuzz::replay_arguments(remora_fuzz::cluster_documents);
}
