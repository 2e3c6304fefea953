//! Congestion policies of connections, on a network that marks and loses packets.

use core::time::Duration;

use remora_nic::Config;
use remora_nic::qp::{Congestion, QpAttr};
use remora_nic::queue::Status;
use remora_nic::wire::{Dialect, Leth, Operation};
use remora_sim::endpoint::ConnectOptions;
use remora_sim::faults::{Fate, Faults, Rule};
use remora_sim::flows::{Cluster, Transport, incast};
use remora_sim::net::time::{MS, US};
use remora_sim::net::{LineRate, Marking, Star};
use remora_sim::packet::Seen;
use remora_sim::{A, B, LinkOptions, Pair, PairOptions, statuses};

const DIALECTS: [Dialect; 2] = [Dialect::STANDARD, Dialect::LOSSY];
const BYTES: u64 = 1 << 20;

fn pair(congestion: Congestion, dialect: Dialect) -> Pair {
    pair_apart(congestion, dialect, Duration::from_micros(10))
}

fn pair_apart(congestion: Congestion, dialect: Dialect, latency: Duration) -> Pair {
    let connect = ConnectOptions { congestion, dialect, ..ConnectOptions::default() };
    let link = LinkOptions { latency, ..LinkOptions::default() };
    Pair::new(&PairOptions { connect, link, region: 2 * BYTES, ..PairOptions::default() })
}

/// Waits for the request that A has just posted. Returns how long it took.
fn wait(pair: &mut Pair) -> Duration {
    let start = pair.world.now;
    let mut sent = Vec::new();
    while sent.is_empty() {
        pair.world.step();
        sent = pair.sent(A);
    }
    assert_eq!(statuses(&sent), [Status::Success]);
    pair.world.now.since(start)
}

/// Writes 1 MiB and reads another; checks the bytes. Returns how long each took.
fn transfer(pair: &mut Pair) -> [Duration; 2] {
    let data = pair.fill(A, 0, BYTES);
    let away = pair.fill(B, BYTES, BYTES);
    pair.write(A, 0, 0, BYTES as u32);
    let wrote = wait(pair);
    pair.read(A, BYTES, BYTES, BYTES as u32);
    let read = wait(pair);
    pair.run();
    assert!(pair.bytes(B, 0, BYTES) == data && pair.bytes(A, BYTES, BYTES) == away);
    [wrote, read]
}

/// On a network that does both, each policy carries everything, and no window or rate closes.
#[test]
fn every_policy_carries_everything_over_marks_and_losses() {
    for (mark, loss) in [(0.0, 0.0), (0.1, 0.01), (1.0, 0.0)] {
        for policy in Congestion::ALL {
            for dialect in DIALECTS {
                let mut pair = pair(policy, dialect);
                pair.world.network.faults = Faults { mark, loss, ..Faults::default() };
                transfer(&mut pair);
                pair.tear_down();
            }
        }
    }
}

/// In the standard dialect marks become notifications, in the lossy one counts of acknowledges.
/// What a READ asked for is slowed down as a WRITE is.
#[test]
fn marks_slow_down_who_heeds_them() {
    for (dialect, from) in DIALECTS.into_iter().flat_map(|d| [(d, A), (d, B)]) {
        let time = |policy, marks: bool| {
            let mut pair = pair(policy, dialect);
            if marks {
                let data = move |seen: &Seen| seen.from == from && seen.payload > 0;
                pair.rule(Rule::all(Fate::Mark, data));
            }
            let took = transfer(&mut pair)[from];
            let told = pair.world.hosts[1 - from].nic.counters().tx_cnps;
            assert_eq!(told > 0, marks && dialect == Dialect::STANDARD, "{policy:?}");
            took
        };
        for policy in [Congestion::Aimd, Congestion::Dctcp, Congestion::Dcqcn] {
            let (quiet, marked) = (time(policy, false), time(policy, true));
            let told = format!("{policy:?}, {dialect:?}, {from}: {marked:?}, {quiet:?}");
            assert!(marked > quiet * 5 / 4, "{told}");
        }
        for policy in [Congestion::Fixed, Congestion::Swift] {
            let (quiet, marked) = (time(policy, false), time(policy, true));
            let told = format!("{policy:?}, {dialect:?}, {from}: {marked:?}, {quiet:?}");
            assert!(marked < quiet * 11 / 10, "{told}");
        }
    }
}

/// Round trips that grow by more than the target slow Swift down, and none else.
#[test]
fn delay_slows_swift_down() {
    for dialect in DIALECTS {
        let time = |policy| {
            let mut pair = pair(policy, dialect);
            for _ in 0..20 {
                pair.write(A, 0, 0, 64);
                pair.run();
            }
            pair.sent(A);
            // Longer by twice the target and more, though packets keep their order.
            let late = Fate::Delay(Duration::from_micros(100));
            pair.rule(Rule::all(late, |seen| seen.from == A && seen.payload > 64));
            transfer(&mut pair)[0]
        };
        let (swift, fixed) = (time(Congestion::Swift), time(Congestion::Fixed));
        assert!(swift > fixed * 3 / 2, "{dialect:?}: {swift:?}, {fixed:?}");
    }
}

/// A rate that notifications have cut paces packets: at the least rate, one at a time, with many
/// round trips between two of them.
#[test]
fn a_rate_paces_packets() {
    let latencies = [1, 10].map(Duration::from_micros);
    for (dialect, latency) in DIALECTS.into_iter().flat_map(|d| latencies.map(|l| (d, l))) {
        let mut pair = pair_apart(Congestion::Dcqcn, dialect, latency);
        pair.world.network.faults = Faults { mark: 1.0, ..Faults::default() };
        transfer(&mut pair);
        pair.forget();
        transfer(&mut pair);
        for from in [A, B] {
            let sent = pair.seen(|seen| seen.from == from && seen.payload > 0);
            let times: Vec<u64> = sent.iter().map(|seen| seen.at.0).collect();
            let apart = times.windows(2).filter(|two| two[1] - two[0] > 500).count();
            assert!(apart * 2 > times.len(), "{from}: {apart} of {} are apart", times.len());
            // (Requests for answers that take long are repeated: copies of data count here.)
            let is_copy = |seen: &&Seen| seen.ext.leth.is_some_and(|l| l.flags & Leth::AGAIN != 0);
            let again = sent.iter().filter(is_copy).count();
            assert_eq!(again, 0, "{dialect:?}, {latency:?}, {from}: it waits from its last packet");
        }
        if dialect == Dialect::STANDARD {
            assert_eq!(pair.world.hosts[A].nic.counters().tx_retransmitted, 0);
        }
        pair.tear_down();
    }
}

/// A queue pair at a low rate answers and asks by turns: neither waits for all of the other.
#[test]
fn a_rate_is_shared_by_answers_and_requests() {
    let mut pair = pair(Congestion::Dcqcn, Dialect::STANDARD);
    pair.world.network.faults = Faults { mark: 1.0, ..Faults::default() };
    transfer(&mut pair);
    pair.forget();
    pair.read(A, 0, BYTES, BYTES as u32 / 2);
    pair.write(B, 0, BYTES, BYTES as u32 / 2);
    pair.run();
    let sent = pair.seen(|seen| seen.from == B && seen.payload > 0);
    let half = &sent[..sent.len() / 2];
    let answers = half.iter().filter(|seen| seen.is(Operation::ReadResponse)).count();
    let fair = half.len() / 3..=half.len() * 2 / 3;
    assert!(fair.contains(&answers), "{answers} of {}", half.len());
    pair.tear_down();
}

/// The card's policy is that of queue pairs which choose none, and a choice counts until RESET.
#[test]
fn the_cards_policy_is_the_default() {
    let config = |config: &mut Config| config.congestion = Congestion::Swift;
    let options = PairOptions { config, ..PairOptions::default() };
    let mut pair = Pair::new(&options);
    let policy = |pair: &Pair| {
        let info = pair.world.hosts[A].nic.query_qp(pair.ends[A].qpn).unwrap();
        info.attr.congestion.unwrap()
    };
    assert_eq!(policy(&pair), Congestion::Aimd, "what the connection has chosen");
    let end = pair.ends[A];
    end.modify(
        &mut pair.world,
        &QpAttr { state: Some(remora_nic::qp::State::Reset), ..QpAttr::default() },
    );
    assert_eq!(policy(&pair), Congestion::Swift);
}

/// Eight hosts send to one, whose port marks at 300 KB and drops at 1 MB, while their windows hold
/// 2 MB: each policy that heeds congestion loses much less than a window that never changes.
#[test]
fn congestion_control_keeps_the_queue_short() {
    let run = |name| {
        let transport = Transport::named(name).unwrap();
        let star = Star { hosts: 9, rate: LineRate::gigabits(100), delay: US };
        let mut cluster = Cluster { transport, ..Cluster::new(star.topology()) };
        cluster.net.buffer.bytes = 1_000_000;
        cluster.net.buffer.marking = Some(Marking::step(300_000));
        let flows = incast(1..9, 0, 4_000_000);
        let report = cluster.run(&flows).unwrap();
        assert_eq!(report.done(), flows.len(), "{name}: {report}");
        report
    };
    for (name, fixed, times) in [
        ("selective", "selective-fixed", 4.0),
        ("dctcp", "selective-fixed", 4.0),
        ("swift", "selective-fixed", 4.0),
        ("dcqcn", "go-back-n-fixed", 1.25),
    ] {
        let (heeds, ignores) = (run(name), run(fixed));
        let dropped = [&heeds, &ignores].map(|report| report.tally.dropped_full as f64);
        assert!(dropped[0] * times < dropped[1], "{name}: {heeds}");
        // 32 MB take 2.56 ms.
        assert!(heeds.end() < 5 * MS, "{name}: {heeds}");
    }
}
