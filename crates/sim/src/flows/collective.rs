//! Flows that wait for each other: all-reduce, and calls that wait for their answers.

use super::flow::Flow;
use crate::net::Ps;

/// A ring all-reduce of `bytes` over hosts 0 up to `hosts`: each sends a part of the data to the
/// next in 2 (n - 1) steps, each when it has got the part of the step before.
pub fn ring_all_reduce(hosts: u32, bytes: u64) -> Vec<Flow> {
    if hosts < 2 {
        return Vec::new();
    }
    let part = bytes.div_ceil(u64::from(hosts));
    let steps = 2 * (hosts - 1);
    let flow = |step: u32, src: u32| {
        let before = (src + hosts - 1) % hosts;
        let after = step.checked_sub(1).map(|last| last * hosts + before);
        Flow { after: after.into_iter().collect(), ..Flow::new(src, (src + 1) % hosts, part, 0) }
    };
    (0..steps).flat_map(|step| (0..hosts).map(move |src| flow(step, src))).collect()
}

/// An all-reduce of `bytes` by halving and doubling (Rabenseifner): in each step, pairs exchange
/// half of what they exchanged before; then twice of that, back to the whole. `None` unless
/// `hosts` is a power of two.
pub fn halving_doubling(hosts: u32, bytes: u64) -> Option<Vec<Flow>> {
    if hosts < 2 || !hosts.is_power_of_two() {
        return None;
    }
    let rounds = hosts.ilog2();
    let mut flows: Vec<Flow> = Vec::new();
    for step in 0..2 * rounds {
        let round = if step < rounds { step } else { 2 * rounds - 1 - step };
        let part = bytes.div_ceil(1 << (round + 1)).max(1);
        let distance = hosts >> (round + 1);
        for src in 0..hosts {
            // What the partner of the step before has sent must be there.
            let after = step.checked_sub(1).map(|last| {
                let round = if last < rounds { last } else { 2 * rounds - 1 - last };
                last * hosts + (src ^ hosts >> (round + 1))
            });
            let flow = Flow::new(src, src ^ distance, part, 0);
            flows.push(Flow { after: after.into_iter().collect(), ..flow });
        }
    }
    Some(flows)
}

/// Calls in a closed loop: each of `clients` asks `server` with `request` bytes, gets `answer`
/// bytes, waits for `think` picoseconds, and asks again, `calls` times.
pub fn calls(
    clients: impl IntoIterator<Item = u32>,
    server: u32,
    (request, answer): (u64, u64),
    think: Ps,
    calls: u32,
) -> Vec<Flow> {
    let mut flows = Vec::new();
    for client in clients.into_iter().filter(|client| *client != server) {
        for call in 0..calls {
            let at = flows.len() as u32;
            let after = if call == 0 { Vec::new() } else { vec![at - 1] };
            flows.push(Flow { after, ..Flow::new(client, server, request, think) });
            flows.push(Flow { after: vec![at], ..Flow::new(server, client, answer, 0) });
        }
    }
    flows
}

/// As [`calls`], by the server's kernel: each client fetches values of these lengths, one after the
/// other, and waits for `think` picoseconds between two.
pub fn gets(
    clients: impl IntoIterator<Item = u32>,
    server: u32,
    (calls, think): (u32, Ps),
    mut length: impl FnMut() -> u64,
) -> Vec<Flow> {
    let mut flows: Vec<Flow> = Vec::new();
    for client in clients.into_iter().filter(|client| *client != server) {
        for call in 0..calls {
            let after = if call == 0 { Vec::new() } else { vec![flows.len() as u32 - 1] };
            flows.push(Flow { after, ..Flow::fetch(client, server, length(), think) });
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_waits_for_one_that_ends_at_its_source() {
        for flows in [
            ring_all_reduce(5, 1000),
            halving_doubling(8, 1000).unwrap(),
            calls(0..4, 2, (64, 1000), 0, 5),
        ] {
            assert_eq!(Flow::check(&flows, 8), Ok(()));
            let arrives =
                |flow: &Flow| flow.after.iter().all(|f| flows[*f as usize].dst == flow.src);
            assert!(flows.iter().all(arrives));
        }
        assert_eq!(ring_all_reduce(5, 1000).len(), 5 * 8);
        assert_eq!(halving_doubling(8, 1000).unwrap().len(), 8 * 6);
        assert_eq!((halving_doubling(6, 1), ring_all_reduce(1, 1)), (None, Vec::new()));
    }

    /// Each host sends twice the data less one part, in a ring as in halves.
    #[test]
    fn both_ways_send_as_much() {
        for flows in [ring_all_reduce(8, 8000), halving_doubling(8, 8000).unwrap()] {
            let sent: u64 = flows.iter().filter(|flow| flow.src == 3).map(|flow| flow.bytes).sum();
            assert_eq!(sent, 2 * 7000);
        }
    }
}
