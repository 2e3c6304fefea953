//! Counters and leaks: the cards' counters match what the network did, and no objects are left
//! over.

use remora_nic::Counters;
use remora_nic::nic::InUse;

use super::{Violation, demand};
use crate::link_faults::Tally;
use crate::world::World;

/// Gives a counter's name and value.
type Counter = fn(&Counters) -> (&'static str, u64);

/// Counters that must stay at zero in a world where all peers follow the protocol.
const NEVER: [Counter; 17] = [
    |c| ("drop_malformed", c.drop_malformed),
    |c| ("drop_version", c.drop_version),
    |c| ("drop_pkey", c.drop_pkey),
    |c| ("drop_opcode", c.drop_opcode),
    |c| ("drop_transport", c.drop_transport),
    |c| ("drop_wrong_source", c.drop_wrong_source),
    |c| ("drop_qkey", c.drop_qkey),
    |c| ("refused_invalid_request", c.refused_invalid_request),
    |c| ("refused_key", c.refused_key),
    |c| ("refused_domain", c.refused_domain),
    |c| ("refused_bounds", c.refused_bounds),
    |c| ("refused_permission", c.refused_permission),
    |c| ("refused_memory", c.refused_memory),
    |c| ("refused_too_many_reads", c.refused_too_many_reads),
    |c| ("elements_invalid", c.elements_invalid),
    |c| ("elements_protection", c.elements_protection),
    |c| ("cq_overflows", c.cq_overflows),
];

/// Checks the cards' counters after all packets have arrived and while all hosts exist.
/// `may_stray` allows packets for queue pairs that have left their multicast group or are gone.
pub fn check(world: &World, may_stray: bool) -> Result<(), Violation> {
    let Tally { sent, delivered, corrupted, marked, .. } = world.network.tally;
    let total = |of: fn(&Counters) -> u64| -> u64 {
        world.hosts.iter().map(|h| of(h.nic.counters())).sum()
    };
    // Packets that a card hands over to itself are not seen by the network.
    let (tx, rx) = (|c: &Counters| c.tx_packets, |c: &Counters| c.rx_packets);
    let local = total(|c| c.local_packets);
    let equal = [
        ("tx_packets", total(tx) - local, "packets sent", sent),
        ("rx_packets", total(rx) - local, "datagrams delivered", delivered),
        ("drop_icrc", total(|c| c.drop_icrc), "datagrams corrupted", corrupted),
    ];
    for (name, counted, what, happened) in equal {
        demand(counted == happened, "counters", || {
            format!("{name} is {counted} in all, but {what} were {happened}")
        })?;
    }
    demand(total(|c| c.rx_ecn_marked) <= marked, "counters", || {
        "the cards counted more marks than the network made".into()
    })?;
    let stray = total(|c| c.drop_unknown_qp);
    demand(may_stray || stray == 0, "counters", || {
        format!("drop_unknown_qp is {stray} over all cards")
    })?;
    for (i, host) in world.hosts.iter().enumerate() {
        for counter in NEVER {
            let (name, count) = counter(host.nic.counters());
            demand(count == 0, "counters", || format!("host {i}: {name} is {count}"))?;
        }
    }
    Ok(())
}

/// Checks that no objects are left on any card after all were destroyed.
pub fn check_leaks(world: &World) -> Result<(), Violation> {
    for (i, host) in world.hosts.iter().enumerate() {
        let left = host.nic.in_use();
        demand(left == InUse::default(), "leaks", || format!("host {i}: {left:?}"))?;
    }
    Ok(())
}
