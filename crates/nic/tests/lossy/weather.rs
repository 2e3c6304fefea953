//! Requests of all kinds both ways, while packets are lost and late at random.

use remora_nic::Config;
use remora_nic::queue::Status::Success;
use remora_nic::queue::{RemoteAddress, SendOp};

use crate::rig::{A, B, Fate, Rig, Settings};

const ROUNDS: u64 = 12;
const LEN: u32 = 5000;

/// Loses one packet in twenty, and delays one in ten by up to 5 µs. (SplitMix64
/// without its last step, so that the seeds stay those of these storms.)
fn storm(rig: &mut Rig, seed: u64) {
    let mut state = seed;
    rig.rule(move |_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        match mixed % 100 {
            0..5 => Fate::Drop,
            5..15 => Fate::Delay(mixed >> 32 & 0xFFF),
            _ => Fate::Pass,
        }
    });
}

#[test]
fn bad_weather() {
    const SENT: u64 = 1 << 18;
    const WRITTEN: u64 = 2 << 18;
    const READ: u64 = 3 << 18;
    const COUNTED: u64 = 1 << 20;
    for seed in 0..200 {
        let reads = if seed % 2 == 0 { 16 } else { 1 };
        let config: fn(&mut Config) =
            if seed % 3 == 0 { |config| config.paths = 8 } else { |_| {} };
        let mut rig = Rig::with(&Settings { reads, config, ..Settings::default() });
        storm(&mut rig, seed);
        for of in [A, B] {
            let bytes: Vec<u8> = (0..ROUNDS * u64::from(LEN)).map(|at| (at / 7) as u8).collect();
            rig.put(of, 0, &bytes);
        }
        for round in 0..ROUNDS {
            let at = round * u64::from(LEN);
            for of in [A, B] {
                let key = rig.ends[of].key;
                let word = RemoteAddress { addr: COUNTED, rkey: rig.ends[1 - of].key };
                rig.write(of, at, WRITTEN + at, LEN);
                rig.send(of, at, LEN);
                rig.read(of, READ + at, LEN);
                rig.post(
                    of,
                    SendOp::FetchAdd { at: word, add: 1 },
                    (COUNTED + 8 + round * 8, key, 8),
                );
                // Some SENDs find their elements late.
                if round % 3 != 0 {
                    rig.receive(1 - of, SENT + at, LEN);
                }
            }
            rig.pass(seed % 5 * 1000);
        }
        for round in (0..ROUNDS).step_by(3) {
            for of in [A, B] {
                rig.receive(of, SENT + round * u64::from(LEN), LEN);
            }
            rig.pass(100_000);
        }
        rig.run();
        for of in [A, B] {
            let sent = rig.sent(of);
            assert!(sent.iter().all(|entry| entry.1 == Success), "seed {seed}: {sent:?}");
            assert_eq!(sent.len() as u64, 4 * ROUNDS, "seed {seed}");
            assert_eq!(rig.received(of).len() as u64, ROUNDS, "seed {seed}");
            let all = rig.bytes(of, 0, ROUNDS as usize * LEN as usize);
            assert!(rig.bytes(of, WRITTEN, all.len()) == all, "seed {seed}");
            let first = &all[..LEN as usize];
            let read = rig.bytes(of, READ, all.len());
            assert!(read.chunks(LEN as usize).all(|chunk| chunk == first), "seed {seed}");
            let before = rig.bytes(of, COUNTED + 8, ROUNDS as usize * 8);
            let counts = before.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            assert!(counts.eq(0..ROUNDS), "seed {seed}");
        }
    }
}
