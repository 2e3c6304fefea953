//! The descriptor ring of a DMA engine: an application writes what it likes into its ring, its
//! indices and its memory, at any time, and has the ring itself granted as memory to copy to.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use remora::dma::engine::Counters;
use remora::dma::path::{Application, Mapping};
use remora::dma::{
    Address, CardMemory, ChannelOptions, Direction, Engine, Flags, Owner, RegionId, Ring, Sizes,
};
use remora::memory::Buffer;

use crate::seeds::Seed;

/// Descriptors of the ring.
const DEPTH: u32 = 8;
/// Bytes of each region.
const REGION: usize = 8192;
/// What the region holds that is granted for reading only.
const UNTOUCHED: u8 = 7;
/// The one who has the ring and the regions.
const OWNER: Owner = Owner(0);
/// The regions: one to write, one to read only, and the ring itself.
const WRITABLE: RegionId = RegionId(0);
const READ_ONLY: RegionId = RegionId(1);
const RING: RegionId = RegionId(2);
/// Where the words of the ring are that the application writes, and its descriptors.
const POSTED: usize = 0;
const DESCRIPTORS: usize = 512;
/// More steps than any input of this length can need: each moves a piece or ends a descriptor.
const STEPS: usize = 1000;

/// The card's memory, made once: to make it takes longer than an input.
fn card() -> Arc<CardMemory> {
    static CARD: OnceLock<Arc<CardMemory>> = OnceLock::new();
    CARD.get_or_init(|| CardMemory::new(Sizes { near: 1, far: 1 }).expect("memory")).clone()
}

/// An engine that serves one ring, and the memory that is granted to it.
struct World {
    engine: Engine,
    ring: Ring,
    read_only: Arc<Buffer>,
}

impl World {
    fn new(options: ChannelOptions) -> World {
        let mut engine = Engine::new(card());
        let ring = Ring::new(DEPTH).expect("memory");
        let served = ring.other_side().expect("memory");
        let buffer = || Arc::new(Buffer::new(REGION).expect("memory"));
        let read_only = buffer();
        read_only.fill(UNTOUCHED);
        let itself = Application {
            pid: 0,
            addr: 0,
            len: ring.bytes().len() as u64,
            file: Some(Arc::new(ring.as_fd().try_clone_to_owned().expect("a descriptor"))),
        };
        let itself = Mapping::of(&itself).expect("a ring can be mapped");
        assert_eq!(engine.grant_own(buffer(), true).ok(), Some(WRITABLE));
        assert_eq!(engine.grant_own(read_only.clone(), false).ok(), Some(READ_ONLY));
        assert_eq!(engine.grant(OWNER, Box::new(itself), true).ok(), Some(RING));
        engine.serve(OWNER, served, options, None).expect("a place for a channel");
        World { engine, ring, read_only }
    }

    /// Takes steps until there is nothing to do, and checks what must hold then.
    fn run(&mut self) {
        let before = self.engine.counters();
        let mut steps = 0;
        // A ring that writes itself may post for ever, so the number of steps is no promise of the
        // engine's; that each of them ends is.
        while steps < STEPS && self.engine.step() {
            steps += 1;
        }
        let counters = self.engine.counters();
        let state = self.engine.channels().next().expect("the channel is served");
        assert_eq!(counters.done + counters.failed, state.completed);
        assert!(counters.bytes >= before.bytes);
        assert!(counters.halted == u64::from(state.halted.is_some()));
        let mut bytes = [0; REGION];
        self.read_only.read_at(0, &mut bytes).expect("the whole region");
        assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "memory granted for reading only");
    }
}

/// Plays the input: a byte for what the channel is, then commands.
///
/// # Panics
/// If the engine panics, writes where it must not, or loses count.
pub fn descriptor(data: &[u8]) {
    play(data);
}

/// [`descriptor()`], and what the engine has counted.
pub fn descriptor_counters(data: &[u8]) -> Counters {
    play(data).map(|world| world.engine.counters()).unwrap_or_default()
}

fn play(data: &[u8]) -> Option<World> {
    let (&first, mut rest) = data.split_first()?;
    let direction = if first & 1 == 0 { Direction::HostToCard } else { Direction::CardToHost };
    let options = ChannelOptions::new(direction).depth(DEPTH);
    let mut world = World::new(if first & 2 == 0 { options } else { options.streaming(0) });
    let mut posted = 0u64;
    while let Some((&command, more)) = rest.split_first() {
        let len = match command % 8 {
            0 => 34,
            1 => 8,
            2 | 3 => 32,
            _ => 1,
        };
        let len = len.min(more.len());
        let (argument, behind) = more.split_at(len);
        rest = behind;
        match command % 8 {
            // Raw bytes anywhere in the ring.
            0 if len > 2 => {
                let at = usize::from(u16::from_le_bytes([argument[0], argument[1]]));
                // What does not fit is refused, and changes nothing.
                world.ring.bytes().write_at(at % (bytes_len() + 64), &argument[2..]).ok();
            }
            // Any index.
            1 => {
                let mut word = [0; 8];
                word[..len].copy_from_slice(argument);
                posted = u64::from_le_bytes(word);
                world.ring.bytes().store_u64(POSTED, posted).expect("a word of the ring");
                world.run();
            }
            // A descriptor at the next place, and the doorbell.
            2 | 3 => {
                let at = DESCRIPTORS + (posted % u64::from(DEPTH)) as usize * 32;
                world.ring.bytes().write_at(at, argument).expect("a place of the ring");
                posted = posted.wrapping_add(1);
                world.ring.bytes().store_u64(POSTED, posted).expect("a word of the ring");
                if command % 8 == 2 {
                    world.run();
                }
            }
            4 => _ = world.engine.revoke(OWNER, RegionId(u16::from(command >> 3) % 3)),
            _ => world.run(),
        }
    }
    world.run();
    Some(world)
}

fn bytes_len() -> usize {
    DESCRIPTORS + DEPTH as usize * 40
}

/// Copies, fills and mistakes, on each kind of channel.
pub fn descriptors() -> Vec<Seed> {
    let of = |code: u8, flags: Flags, len: u32, src: u64, dst: Address| {
        let mut bytes = vec![2, code, flags.bits(), 0, 0];
        bytes.extend(len.to_le_bytes());
        bytes.extend(src.to_le_bytes());
        bytes.extend(dst.to_bits().unwrap_or(u64::MAX).to_le_bytes());
        bytes.extend([0; 8]);
        bytes
    };
    let host = |region: RegionId, at: u64| region.at(at).to_bits().unwrap_or(u64::MAX);
    let card = Address::Card(0x100);
    let none = Flags::empty();
    let to_card = [
        of(1, none, 4096, host(WRITABLE, 5), card),
        of(1, Flags::FENCE, 100, host(READ_ONLY, 0), card),
        of(1, Flags::LINKED, 9000, host(WRITABLE, 0), card),
        of(2, none, 1000, 0x0102_0304_0506_0708, card),
        of(1, none, 200, 0x180, Address::Card(0x4000)),
    ];
    let to_host = [
        of(1, none, 4096, 0x100, WRITABLE.at(1)),
        of(1, none, 8, 0x100, READ_ONLY.at(8)),
        // Over its own index and descriptors.
        of(1, none, 600, 0x100, RING.at(0)),
        of(2, none, 64, u64::MAX, WRITABLE.at(8128)),
    ];
    let stream = [
        of(1, Flags::MORE, 100, host(WRITABLE, 0), card),
        of(1, none, 5000, host(READ_ONLY, 0), card),
    ];
    let wild = [vec![0, 0, 0], vec![0xff; 8], vec![1], vec![0xff; 8]].concat();
    let seed = |name: &str, first: u8, parts: &[Vec<u8>]| Seed {
        name: name.into(),
        data: [vec![first], parts.concat()].concat(),
    };
    vec![
        seed("to_card", 0, &to_card),
        seed("to_host", 1, &to_host),
        seed("into_a_stream", 2, &stream),
        seed("out_of_a_stream", 3, &to_host),
        seed("wild_index", 0, &[wild]),
        seed("revoked", 0, &[vec![4, 0], to_card[0].clone()]),
    ]
}
