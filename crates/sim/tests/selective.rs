//! The models of other schemes of selective repeat, whole runs: IRN, and SRNIC as published.

use core::time::Duration;

use remora_sim::LinkOptions;
use remora_sim::selective::{IRN, SRNIC, Selective, Terms};

fn terms(packets: u64) -> Terms {
    Terms {
        link: LinkOptions::default(),
        mtu: 1024,
        packets,
        window: 64,
        loss: 0.0,
        paths: vec![Duration::ZERO],
        run: 16,
        drop: None,
        seed: 1,
    }
}

/// Without losses, the bytes take the time that the link needs, and nothing is sent again.
#[test]
fn without_losses_the_link_is_busy() {
    for (scheme, headers) in [(IRN, 32), (SRNIC, 36)] {
        let outcome = scheme.run(&terms(10_000));
        let ns = 10_000 * (1024 + headers + 66) * 8 / 100 + 2000;
        let took = outcome.took.as_nanos() as u64;
        assert!((ns..ns + 20).contains(&took), "{outcome:?}, {ns}");
        assert_eq!((outcome.retransmitted, outcome.timeouts, outcome.lost), (0, 0, 0));
    }
}

/// A packet that is lost is sent again alone, in round trips; a last one costs a time-out.
#[test]
fn a_lost_packet_is_sent_again_alone() {
    for scheme in [IRN, SRNIC] {
        let quiet = scheme.run(&terms(200));
        let lost = scheme.run(&Terms { drop: Some(50), ..terms(200) });
        assert_eq!((lost.retransmitted, lost.timeouts, lost.lost), (1, 0, 1), "{scheme:?}");
        assert!(lost.took < quiet.took + Duration::from_micros(10), "{lost:?}");
        let last = scheme.run(&Terms { drop: Some(199), ..terms(200) });
        assert_eq!((last.retransmitted, last.timeouts), (1, 1), "{scheme:?}");
        assert!(last.took > quiet.took + Duration::from_micros(90), "{last:?}");
    }
}

/// Everything arrives, whatever is lost.
#[test]
fn bad_weather() {
    for scheme in [IRN, SRNIC] {
        for seed in 0..50 {
            let outcome = scheme.run(&Terms { loss: 0.05, seed, ..terms(3000) });
            assert!(outcome.retransmitted > 100, "{scheme:?}, seed {seed}: {outcome:?}");
        }
    }
}

/// Reordering is taken for loss (DCP, SIGCOMM 2025).
#[test]
fn paths_of_unequal_delay_look_like_losses() {
    let paths = (0..8).map(Duration::from_micros).collect();
    let outcome = IRN.run(&Terms { paths, ..terms(10_000) });
    assert!(outcome.retransmitted > 1000 && outcome.lost == 0, "{outcome:?}");
}

/// Exits from recovery fail more often while software's news are on their way (SRNIC, Fig. 8) than
/// by newer gaps alone.
#[test]
fn exits_fail_while_news_are_on_their_way() {
    let failed = |ns| {
        let scheme = Selective { control_queue: Some(Duration::from_nanos(ns)) };
        scheme.run(&Terms { loss: 0.01, ..terms(20_000) }).failed_exits
    };
    let (at_once, later) = (failed(0), failed(1000));
    assert!(at_once * 2 < later, "{at_once}, {later}");
}
