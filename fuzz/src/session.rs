//! A client of a shared card that writes anything anywhere into the memory that it shares with the
//! daemon.

use crate::Seed;

/// Each eight bytes are a place in the memory (u32) and what the client writes there (u32); then
/// the daemon has a look.
pub fn session(data: &[u8]) {
    remora::daemon::hostile_arena(data);
}

/// Inputs that post, ring, read completions, and write into each part of the memory.
pub fn sessions() -> Vec<Seed> {
    let seed = |name: &str, steps: &[(u32, u32)]| {
        let bytes = |&(at, value): &(u32, u32)| [at.to_le_bytes(), value.to_le_bytes()].concat();
        Seed { name: name.to_owned(), data: steps.iter().flat_map(bytes).collect() }
    };
    vec![
        // The record of queue n is named by 5 · m ≡ n (mod 8): 25 is that of the first send queue.
        seed("posts", &[(25, 1), (25, 2), (25, 8), (0, 3), (25, 9)]),
        seed("receives", &[(10, 4), (35, 4), (25, 1), (0, 8)]),
        seed("index-beyond", &[(1, 0x8000_0000), (6, 0xffff_ffff), (11, 9)]),
        seed("doorbells", &[(2, 0xffff_ffff), (0x102, 0xff), (0x702, 0xffff_ffff)]),
        seed("elements", &[(3, 4), (0x403, 0x0100_0001), (25, 1), (0x803, 7), (25, 2)]),
        seed("anywhere", &[(4, 0), (0x1004, 0xffff_ffff), (0x0010_0004, 1), (25, 1)]),
    ]
}
