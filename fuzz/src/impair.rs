//! Impairments as text, and the engine that decides by them. Any text is either refused with what
//! is wrong with it, or makes an engine that any packets at any times may go through.

use std::net::Ipv4Addr;
use std::time::Duration;

use remora::impair::{Direction, Fate, Impairer, Impairments};
use remora_nic::Time;

use crate::seeds::Seed;

/// Reads the input as a text, and has some packets judged as it says.
///
/// # Panics
/// If a mistake is not explained, or a packet is due before it came.
pub fn impair(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let wanted = match text.parse::<Impairments>() {
        Ok(wanted) => wanted,
        Err(wrong) => {
            let message = wrong.to_string();
            assert!(message.len() > 20 && !message.contains('\n'), "{message}");
            return;
        }
    };
    for direction in [Direction::In, Direction::Out] {
        let mut impairer = Impairer::new(direction, &wanted, 7);
        let mut now = Time::ZERO;
        for byte in data {
            now = now + Duration::from_nanos(1 << (byte % 40));
            let peer = Ipv4Addr::new(192, 0, 2, *byte).into();
            if let Fate::Delayed(held) = impairer.judge(now, peer, usize::from(*byte) * 17) {
                assert!(held.due >= now, "{held:?} at {now:?}");
            }
        }
    }
}

/// Texts with every name.
pub fn impairments() -> Vec<Seed> {
    let texts = [
        (
            "all",
            "in,peer=192.0.2.0/24,loss=1%,delay=20us+-5us,reorder=0.1%,duplicate=2%,\
                 corrupt=1%,rate=10G,queue=64kB,seed=7",
        ),
        ("lines", "# a bad day\nout,loss=100%; in,delay=1s\noff\n"),
        ("slow", "rate=1k,queue=0,delay=1ms\u{b1}1ms"),
        ("peers", "peer=::1/0,loss=5%;peer=10.0.0.1,corrupt=0.5%"),
    ];
    texts.map(|(name, text)| Seed { name: name.into(), data: text.into() }).to_vec()
}
