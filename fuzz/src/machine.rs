//! A virtual machine that writes anything into the memory of its device: requests of its programs,
//! and everything else that is there.

use crate::Seed;

/// Each step is what the guest does (u8), a length (u8), and so many bytes; then the daemon has a
/// look.
pub fn machine(data: &[u8]) {
    remora::daemon::hostile_machine(data);
}

/// Inputs that greet, command, end, ask what a guest may not, and write into the mailbox's words.
pub fn machines() -> Vec<Seed> {
    let seed = |name: &str, steps: &[(u8, &[u8])]| {
        let bytes = |&(what, bytes): &(u8, &[u8])| [&[what, bytes.len() as u8][..], bytes].concat();
        Seed { name: name.to_owned(), data: steps.iter().flat_map(bytes).collect() }
    };
    let word = |at: u32, value: u32| [(at / 4).to_le_bytes(), value.to_le_bytes()].concat();
    vec![
        seed("greets-twice", &[(0, &[]), (0, &[]), (3, &[]), (3, &[0])]),
        // The first commands, which have no arguments or short ones.
        seed("commands", &[(0, &[]), (2, &[0]), (2, &[1, 0]), (2, &[2, 16]), (2, &[3, 0, 0])]),
        seed("requests", &[(0, &[]), (3, &[1, 2]), (3, &[5, 1]), (3, &[6, 0]), (3, &[7, 1, 49])]),
        seed(
            "hellos",
            &[(1, &[0, 0, 0, 0, 1]), (1, &[0, 0, 0, 2, 0]), (1, &[1, 1, 65, 0, 0, 2, 0])],
        ),
        seed("lengths", &[(0, &[]), (4, &word(68, u32::MAX)), (4, &word(64, 9)), (3, &[0])]),
        seed("anywhere", &[(0, &[]), (5, &word(512, 1)), (5, &word(1 << 20, 7)), (2, &[0])]),
    ]
}
