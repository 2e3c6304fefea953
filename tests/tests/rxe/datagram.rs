//! Datagrams.

use std::time::Duration;

use remora_tests::end::{Pair, QKEY, Service, Work, sum_of_pattern};

use crate::{Two, well};

const THERE: u64 = 2 << 20;
/// The bytes of the GRH that precedes a datagram's data.
const GRH: u64 = 40;

fn ready(two: &mut Two<'_>) -> (Pair, Pair) {
    let (here, there) = (two.a.pair(Service::Ud), two.b.pair(Service::Ud));
    two.a.ready(&here);
    two.b.ready(&there);
    (here, there)
}

pub(crate) fn datagrams(two: &mut Two<'_>) {
    let (here, there) = ready(two);
    let mtu = u64::from(two.mtu);
    for (i, len) in [0, 1, 3, 64, mtu - 1, mtu].into_iter().enumerate() {
        for imm in [None, Some(0xfedc_0000 + i as u32)] {
            two.a.fill(0, len, 3);
            two.b.recv(&there, len, THERE, GRH + len);
            two.a.post(&here, len, Work::Datagram(there, QKEY, imm), 0, len);
            well(&mut two.a, len);
            let got = well(&mut two.b, len);
            assert_eq!((u64::from(got.len), got.imm), (GRH + len, imm), "{len} bytes");
            assert_eq!((got.src_qp, got.grh), (here.qpn, true));
            assert_eq!(two.b.sum(THERE + GRH, len), sum_of_pattern(len, 3));
            let version = two.b.get(THERE + if here.address.is_ipv4() { 20 } else { 0 });
            let wanted = if here.address.is_ipv4() { 4 } else { 6 };
            assert_eq!(version.to_ne_bytes()[0] >> 4, wanted, "the route's header");
        }
    }
}

pub(crate) fn wrong_key(two: &mut Two<'_>) {
    let (here, there) = ready(two);
    two.b.recv(&there, 1, THERE, GRH + 8);
    two.a.post(&here, 1, Work::Datagram(there, QKEY + 1, None), 0, 8);
    well(&mut two.a, 1);
    assert_eq!(two.b.poll(Duration::from_millis(300)), None, "a wrong Q_Key is not delivered");
    two.a.post(&here, 2, Work::Datagram(there, QKEY, None), 0, 8);
    well(&mut two.a, 2);
    well(&mut two.b, 1);
}
