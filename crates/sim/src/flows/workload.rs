//! Workloads: which hosts send each other how much, and when.

use thiserror::Error;

use super::flow::Flow;
use super::sizes::Sizes;
use crate::dice::{SplitMix, Use};
use crate::net::Ps;

/// Why there is no such load.
#[derive(Clone, Copy, PartialEq, Debug, Error)]
pub enum LoadError {
    /// The load is out of bounds.
    #[error("a load of {0} is not above 0 and at most 1")]
    Load(f64),
    /// There are too few hosts.
    #[error("a load needs two hosts, and links with a rate")]
    Hosts,
    /// There would be too many flows.
    #[error(
        "this load means about {0:.0} flows, which need about {gib:.0} GiB of memory; \
         the most is {most}",
        gib = .0 * Flow::MEMORY as f64 / f64::from(1 << 30),
        most = Flow::MOST
    )]
    TooMany(f64),
}

/// Flows that arrive at random at each host (Poisson), to random other hosts, for `span`
/// picoseconds. `load` is the part of the hosts' rate that their bytes take; headers and gaps
/// between packets do not count.
///
/// # Errors
/// If the load is not above 0 and at most 1, or means more flows than can be run.
pub fn poisson(
    hosts: u32,
    bits_per_second: u64,
    load: f64,
    sizes: &Sizes,
    span: Ps,
    seed: u64,
) -> Result<Vec<Flow>, LoadError> {
    poisson_at(&vec![bits_per_second; hosts as usize], load, sizes, span, seed)
}

/// As [`poisson`], where each host has a rate of its own, in bits per second. What a host sends is
/// in proportion to its rate, and so is what it is sent.
///
/// # Errors
/// As those of [`poisson`].
pub fn poisson_at(
    rates: &[u64],
    load: f64,
    sizes: &Sizes,
    span: Ps,
    seed: u64,
) -> Result<Vec<Flow>, LoadError> {
    if !(load > 0.0 && load <= 1.0) {
        return Err(LoadError::Load(load));
    }
    if rates.len() < 2 || rates.contains(&0) {
        return Err(LoadError::Hosts);
    }
    let gap_of = |bits: u64| sizes.mean() * 8e12 / (bits as f64 * load);
    let expected = rates.iter().map(|bits| span as f64 / gap_of(*bits)).sum();
    if expected > 0.9 * Flow::MOST as f64 {
        return Err(LoadError::TooMany(expected));
    }
    let targets = Targets::of(rates);
    let mut flows = Vec::with_capacity(expected as usize);
    for (src, bits) in (0u32..).zip(rates) {
        let gap_ps = gap_of(*bits);
        // A stream for each host: more hosts do not change those that were there.
        let mut random = Use::Loads.stream(seed, src.into());
        let mut at = 0.0;
        loop {
            at -= (1.0 - random.fraction()).ln() * gap_ps;
            if at >= span as f64 {
                break;
            }
            let dst = targets.draw(&mut random, src);
            flows.push(Flow::new(src, dst, sizes.draw(&mut random), at as Ps));
        }
    }
    flows.sort_by_key(|flow| (flow.start, flow.src));
    Ok(flows)
}

/// Random targets, each as often as its rate says.
enum Targets {
    /// So many hosts, of one rate.
    Alike(u32),
    /// By host: the sum of the rates up to its own.
    Sums(Vec<u128>),
}

impl Targets {
    fn of(rates: &[u64]) -> Targets {
        if rates.iter().all(|bits| *bits == rates[0]) {
            return Targets::Alike(rates.len() as u32);
        }
        let mut sum = 0;
        let add = |bits: &u64| {
            sum += u128::from(*bits);
            sum
        };
        Targets::Sums(rates.iter().map(add).collect())
    }

    /// A random host that is not `than`.
    fn draw(&self, random: &mut SplitMix, than: u32) -> u32 {
        match self {
            Targets::Alike(hosts) => {
                let host = (random.number() % u64::from(hosts - 1)) as u32;
                host + u32::from(host >= than)
            }
            // Its own share of the circle is left out.
            Targets::Sums(sums) => {
                let sum = |hosts: usize| hosts.checked_sub(1).map_or(0, |last| sums[last]);
                let [before, up_to] = [than, than + 1].map(|hosts| sum(hosts as usize));
                let own = up_to - before;
                let at = (u128::from(random.number()) * (sum(sums.len()) - own)) >> 64;
                let at = if at < before { at } else { at + own };
                sums.partition_point(|sum| *sum <= at) as u32
            }
        }
    }
}

/// All of `sources` send `bytes` to `dst` at once.
pub fn incast(sources: impl IntoIterator<Item = u32>, dst: u32, bytes: u64) -> Vec<Flow> {
    let sources = sources.into_iter().filter(|src| *src != dst);
    sources.map(|src| Flow::new(src, dst, bytes, 0)).collect()
}

/// Each host sends `bytes` to one other at once, and gets from one, in a random way.
pub fn permutation(hosts: u32, bytes: u64, seed: u64) -> Vec<Flow> {
    // A random cycle: so that none sends to itself.
    let mut random = Use::Cycles.stream(seed, 0);
    let mut cycle: Vec<u32> = (0..hosts).collect();
    for i in (1..cycle.len()).rev() {
        cycle.swap(i, (random.number() % (i as u64 + 1)) as usize);
    }
    let next = cycle.iter().cycle().skip(1);
    let pairs = cycle.iter().zip(next).filter(|(src, dst)| src != dst);
    pairs.map(|(src, dst)| Flow::new(*src, *dst, bytes, 0)).collect()
}

/// Each host sends `bytes` to every other at once.
pub fn all_to_all(hosts: u32, bytes: u64) -> Vec<Flow> {
    let from = |src| (1..hosts).map(move |i| Flow::new(src, (src + i) % hosts, bytes, 0));
    (0..hosts).flat_map(from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::time::MS;

    #[test]
    fn a_load_is_what_it_says() {
        let sizes = Sizes::cache_follower();
        let flows = poisson(256, 100_000_000_000, 0.7, &sizes, 5 * MS, 1).unwrap();
        // 12,183 flows a second a host.
        assert!((flows.len() as f64 / (256.0 * 12_183.0 * 0.005) - 1.0).abs() < 0.03);
        let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
        let load = bytes as f64 * 8.0 / (256.0 * 100e9 * 0.005);
        assert!((load / 0.7 - 1.0).abs() < 0.05, "{load}");
        assert_eq!(Flow::check(&flows, 256), Ok(()));
        let mut targets = [0; 256];
        flows.iter().for_each(|flow| targets[flow.dst as usize] += 1);
        assert!(targets.iter().all(|n| (20..110).contains(n)), "{targets:?}");
        for load in [0.0, -1.0, 1.1, f64::NAN] {
            assert!(poisson(2, 1, load, &sizes, MS, 1).is_err());
        }
        let much = poisson(1 << 20, 1 << 40, 1.0, &Sizes::fixed(1), 1000 * MS, 1);
        assert!(matches!(much, Err(LoadError::TooMany(_))));
    }

    #[test]
    fn each_host_has_a_load_of_its_own_rate() {
        let rates: Vec<u64> =
            (0..64).map(|host| if host < 16 { 100 } else { 25 } * 1_000_000_000).collect();
        let (sizes, span) = (Sizes::fixed(10_000), 5 * MS);
        let flows = poisson_at(&rates, 0.6, &sizes, span, 3).unwrap();
        assert_eq!(Flow::check(&flows, 64), Ok(()));
        let load = |of: fn(&Flow) -> u32, host: u32| {
            let own = flows.iter().filter(|flow| of(flow) == host);
            let bits: u64 = own.map(|flow| flow.bytes * 8).sum();
            bits as f64 / (rates[host as usize] as f64 * 0.005)
        };
        for host in 0..64 {
            let loads = [load(|flow| flow.src, host), load(|flow| flow.dst, host)];
            assert!(loads.iter().all(|load| (load / 0.6 - 1.0).abs() < 0.15), "{host}: {loads:?}");
        }
        let alike = poisson_at(&rates[..9], 0.6, &sizes, span, 3);
        assert_eq!(alike, poisson(9, rates[0], 0.6, &sizes, span, 3));
        assert_eq!(poisson_at(&[5, 0], 0.6, &sizes, span, 3), Err(LoadError::Hosts));
        // One that has nearly all of the rate does not draw until it finds another.
        let unlike = Targets::of(&[1 << 62, 1, 1]);
        let mut random = SplitMix::new(1);
        assert!((0..100).all(|_| unlike.draw(&mut random, 0) != 0));
    }

    #[test]
    fn every_host_has_its_part() {
        let count = |flows: &[Flow], of: fn(&Flow) -> u32, host| {
            flows.iter().filter(|flow| of(flow) == host).count()
        };
        let (cycle, all) = (permutation(9, 100, 4), all_to_all(9, 100));
        for host in 0..9 {
            assert_eq!((count(&cycle, |f| f.src, host), count(&cycle, |f| f.dst, host)), (1, 1));
            assert_eq!((count(&all, |f| f.src, host), count(&all, |f| f.dst, host)), (8, 8));
        }
        assert!(cycle.iter().chain(&all).all(|flow| flow.src != flow.dst));
        assert_eq!(incast(0..9, 4, 100).len(), 8);
        assert!(permutation(1, 1, 1).is_empty());
    }
}
