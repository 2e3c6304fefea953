//! A client that writes anything into its arena, for fuzzing: a card, a session, and no socket.

use std::sync::atomic::Ordering;

use remora_nic::queue::RingInit;
use remora_nic::wire::Transport;
use remora_nic::{Access, Config, Counters, MrInit, Nic, PageTable, Pd, QpFlags, QpInit, Time};

use super::engine::Engine;
use crate::clock::Clock;
use crate::event::Event;
use crate::memory::HostMemory;
use crate::message::Quotas;
use crate::shared::Arena;
use crate::shared::arena::{DATA, PAGE};
use crate::wake_socket::Wake;

/// Steps that one input makes at most.
const STEPS: usize = 512;
/// Pages of the region: most of those behind the arena's head. The first has the ring of the
/// completion queue, and the next four those of the queue pairs: send, receive, send, receive.
const REGION_PAGES: usize = 12;

/// The key of the session's region, whose addresses begin with 0.
pub const HOSTILE_KEY: u32 = 0xD5A6_3FEE;

/// A session with a loop-back pair of queue pairs, and a region in which their own rings lie. The
/// input is a list of steps of eight bytes: a place in the arena, and what the client writes there;
/// each lets the daemon look afterwards. Returns what the card has counted.
///
/// # Panics
/// If the engine or the card breaks a promise; if the system has no memory or descriptors.
pub fn hostile_arena(data: &[u8]) -> Counters {
    let (arena, file) = Arena::create(DATA + 16 * PAGE).expect("memory for an arena");
    let events = || (Event::new().expect("a descriptor"), Wake::new().expect("a descriptor"));
    let mut engine = Engine::new().expect("a descriptor");
    let client = arena.clone();
    let attached = engine.attach(arena, file, events(), Quotas::default());
    let session = attached.expect("the first session");
    let mut nic = Nic::new(Config::new(std::net::Ipv4Addr::LOCALHOST.into()), [7; 32]);
    // SAFETY: the card's rings and its region lie in the arena, which this function keeps, and
    // which all reach by raw pointers and atomics.
    let mut memory = unsafe { HostMemory::new() };
    let pd = queues(&mut engine, &mut nic, session);
    let start = client.memory().addr() + DATA as u64;
    let len = (REGION_PAGES * PAGE) as u64;
    let pages = PageTable::contiguous(12, start, len);
    let key = nic.reg_mr(pd, MrInit { iova: 0, len, access: Access::all(), pages });
    assert_eq!(key, Ok(HOSTILE_KEY), "keys are drawn from the card's seed");
    for (round, step) in data.chunks_exact(8).take(STEPS).enumerate() {
        let word =
            |at: usize| u32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
        write(&client, word(0), word(4));
        let now = Time(round as u64 * 1000);
        if engine.is_rung() {
            engine.take_doorbells(now, &mut nic, &mut memory);
        }
        let mut batch = remora_nic::TransmitBatch::new();
        nic.poll_transmit(now, &mut memory, &mut batch, 16);
        engine.publish(&mut nic, Clock::from(0));
        while let Some(event) = nic.poll_event() {
            if let Some(of) = engine.session_of(&event) {
                engine.tell(of, &crate::message::encode(&event));
            }
        }
        if engine.will_sleep() {
            engine.woke();
        }
    }
    *nic.counters()
}

/// The client writes `value` at a place that `at` names: mostly where something is. (The highest
/// bit of `at` stands for the region's key, which no input would guess.)
fn write(client: &Arena, at: u32, value: u32) {
    let memory = client.memory();
    let value = if at >> 31 == 1 { HOSTILE_KEY } else { value };
    let records = 4096 + (at as usize % 8) * 128 + (at as usize >> 8) % 32 * 4;
    let place = match at % 5 {
        // Indices are near those that are right.
        0 => return store(memory, records, value % 40),
        1 => records,
        2 => 512 + (at as usize >> 8) % 16 * 4,
        3 => DATA + (at as usize >> 8) % (16 * PAGE / 4) * 4,
        _ => (at as usize >> 8) % (memory.len() / 4) * 4,
    };
    store(memory, place, value);
    // And rings the doorbells of all that it has.
    for queue in 0..8 {
        client.ring(queue);
    }
}

fn store(memory: &crate::memory::Buffer, at: usize, value: u32) {
    memory.word32(at).expect("a place in the arena").store(value, Ordering::Relaxed);
}

/// Two queue pairs that are connected to each other, with a completion queue; returns their domain.
fn queues(engine: &mut Engine, nic: &mut Nic, session: u16) -> Pd {
    let pd = nic.alloc_pd().expect("a new card has room");
    let cq = nic.create_exported_cq(8).expect("a new card has room");
    engine.add_cq(session, cq, 8).expect("a new arena has room");
    let mut qpns = [0; 2];
    for qpn in &mut qpns {
        let mut ring = || {
            let (place, addr) = engine.take_ring(session, 8 * 64).expect("a new arena has room");
            (place.number, RingInit { addr, depth: 8, stride: 64 })
        };
        let ((send, sq), (recv, rq)) = (ring(), ring());
        let init = QpInit {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq,
            rq,
            signal_all: true,
            flags: QpFlags::empty(),
            client: 0,
        };
        *qpn = nic.create_qp(init).expect("a new card has room");
        engine.add_qp(session, *qpn, Some(send), Some(recv));
    }
    nic.loop_back(qpns[0], qpns[1], Access::all()).expect("fresh queue pairs");
    pd
}

/// Eight bytes each time, of any values, and always the same (xorshift).
#[cfg(test)]
pub(super) fn words() -> impl FnMut() -> [u8; 8] {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_writes_leave_the_daemon_whole() {
        let mut next = words();
        for _ in 0..300 {
            let steps: Vec<u8> = (0..200).flat_map(|_| next()).collect();
            hostile_arena(&steps);
        }
        hostile_arena(&[]);
        hostile_arena(&[255; 4096]);
    }
}
