//! A client of a shared card that writes anything anywhere into the memory that it shares with the
//! daemon.

use remora_nic::Counters;
use remora_nic::queue::Opcode;

use crate::Seed;

/// Each eight bytes are a place in the memory (u32) and what the client writes there (u32); then
/// the daemon has a look.
pub fn session(data: &[u8]) {
    session_counters(data);
}

/// Runs [`session`], and returns the card's counters.
pub fn session_counters(data: &[u8]) -> Counters {
    remora::daemon::hostile_arena(data)
}

/// The first bytes of the rings behind the arena's head, which are where the region has them, too.
const SEND: u32 = 4096;
const RECEIVE_THERE: u32 = 4 * 4096;
/// A place of the region with no ring.
const FREE: u32 = 6 * 4096;
/// Publishes one element more of the first send queue, or of the second receive queue. (The record
/// of queue n is named by 5 · m ≡ n (mod 8).)
const POST: u32 = 25;
const POST_RECEIVE: u32 = 20;
/// Rings all doorbells, and writes a byte that nobody reads.
const RING: (u32, u32) = (0x3fff_0004 / 5 * 5 + 3, 0);

/// A step that writes a word behind the arena's head.
fn word(at: u32, value: u32) -> (u32, u32) {
    let place = (at / 4) << 8;
    (place + (8 - place % 5) % 5, value)
}

/// A step that writes the region's key there.
fn key(at: u32) -> (u32, u32) {
    let place = (at / 4) << 8 | 1 << 31;
    (place + (8 - place % 5) % 5, 0)
}

/// Steps that write an element with one entry of the region's into a slot at `ring`.
fn element(ring: u32, opcode: Opcode, (local, len): (u32, u32), remote: u32) -> Vec<(u32, u32)> {
    vec![
        word(ring, opcode as u32),
        // One entry; its completion is wanted.
        word(ring + 8, 0x0100_0001),
        key(ring + 12),
        word(ring + 16, remote),
        word(ring + 24, 5),
        word(ring + 40, local),
        word(ring + 48, len),
        key(ring + 52),
    ]
}

/// Inputs whose elements have a key that opens memory.
fn with_the_key() -> Vec<(&'static str, Vec<(u32, u32)>)> {
    let posted = |elements: &[Vec<(u32, u32)>], behind: &[(u32, u32)]| {
        let post = (POST, elements.len() as u32);
        [&elements.concat()[..], &[post, RING], behind].concat()
    };
    let write = |local, len, remote| element(SEND, Opcode::Write, (local, len), remote);
    let receive = element(RECEIVE_THERE, Opcode::Send, (FREE, 64), 0);
    let send = element(SEND, Opcode::Send, (FREE + 64, 64), 0);
    // Words that change while a message of some packets is read and written.
    let meanwhile: Vec<_> = (0..8).map(|n| word(FREE + n * 2000, n)).collect();
    vec![
        ("write", posted(&[write(FREE, 64, FREE + 4096)], &[])),
        ("read", posted(&[element(SEND, Opcode::Read, (FREE, 5000), FREE + 8192)], &[])),
        ("add", posted(&[element(SEND, Opcode::FetchAdd, (FREE, 8), FREE + 8)], &[])),
        ("long-write", posted(&[write(FREE, 20_000, 0)], &meanwhile)),
        // Over the ring of completions, and over the element itself and those behind it.
        ("write-over-completions", posted(&[write(FREE, 512, 0)], &[RING, RING])),
        ("write-over-elements", posted(&[write(FREE, 512, SEND), vec![]], &[(POST, 8), RING])),
        ("copy-of-itself", posted(&[write(SEND, 64, SEND + 64), vec![]], &[(POST, 3), RING])),
        ("beyond", posted(&[write(12 * 4096 - 8, 64, FREE)], &[])),
        ("send", [receive, vec![(POST_RECEIVE, 1), RING], posted(&[send], &[])].concat()),
    ]
}

/// Inputs that post, ring, read completions, and write into each part of the memory.
pub fn sessions() -> Vec<Seed> {
    let seed = |name: &str, steps: &[(u32, u32)]| {
        let bytes = |&(at, value): &(u32, u32)| [at.to_le_bytes(), value.to_le_bytes()].concat();
        Seed { name: name.to_owned(), data: steps.iter().flat_map(bytes).collect() }
    };
    let mut seeds = vec![
        seed("posts", &[(25, 1), (25, 2), (25, 8), (0, 3), (25, 9)]),
        seed("receives", &[(10, 4), (35, 4), (25, 1), (0, 8)]),
        seed("index-beyond", &[(1, 0x8000_0000), (6, 0xffff_ffff), (11, 9)]),
        seed("doorbells", &[(2, 0xffff_ffff), (0x102, 0xff), (0x702, 0xffff_ffff)]),
        seed("elements", &[(3, 4), (0x403, 0x0100_0001), (25, 1), (0x803, 7), (25, 2)]),
        seed("anywhere", &[(4, 0), (0x1004, 0xffff_ffff), (0x0010_0004, 1), (25, 1)]),
    ];
    seeds.extend(with_the_key().iter().map(|(name, steps)| seed(name, steps)));
    seeds
}
