//! What must hold of resources, whatever passes them.

use proptest::prelude::*;
use remora_sim::hardware::circuit::Route;
use remora_sim::hardware::resource::{Item, Service};
use remora_sim::hardware::{Circuit, Order, Rate, Resource, Step, Terms};

/// What is served, and whether it gives its place back at its arrival.
fn serve(terms: Terms, items: &[(u64, u32, u64)]) -> Vec<(u64, Service)> {
    let mut resource = Resource::new(terms);
    let (mut served, mut held) = (Vec::new(), Vec::<u64>::new());
    let (mut at, mut now) = (0, 0);
    loop {
        let offers = items.get(at).map(|(time, ..)| *time);
        let starts = resource.next_start().map(|time| time.max(now));
        let frees = held.iter().min().copied();
        let Some(next) = [offers, starts, frees].into_iter().flatten().min() else { break };
        now = next;
        while let Some(free) = held.iter().position(|time| *time == now) {
            held.swap_remove(free);
            resource.release();
        }
        while let Some((_, user, bytes)) = items.get(at).filter(|(time, ..)| *time == now) {
            resource.offer(Item { user: *user, bytes: *bytes, id: at as u64 });
            at += 1;
        }
        while let Some(service) = resource.start(now) {
            held.push(service.arrives_ps);
            served.push((now, service));
        }
        if let Some(window) = terms.window {
            assert!(held.len() <= window as usize, "more than the window holds a place");
        }
    }
    served
}

fn terms() -> impl Strategy<Value = Terms> {
    let rate = (1u64..5000, 1u64..5000).prop_map(|(bytes, ps)| Rate::new(bytes, ps));
    let order = prop_oneof![Just(Order::Fifo), Just(Order::RoundRobin)];
    (rate, proptest::option::of(1u32..5), 0u64..10_000, order).prop_map(
        |(rate, window, latency_ps, order)| Terms { rate: Some(rate), window, latency_ps, order },
    )
}

fn items() -> impl Strategy<Value = Vec<(u64, u32, u64)>> {
    let item = (0u64..3000, 0u32..4, 0u64..2000);
    proptest::collection::vec(item, 1..60).prop_map(|mut items| {
        let mut time = 0;
        for item in &mut items {
            time += item.0;
            item.0 = time;
        }
        items
    })
}

proptest! {
    #[test]
    fn a_resource_is_never_faster_than_its_rate(terms in terms(), items in items()) {
        let served = serve(terms, &items);
        prop_assert_eq!(served.len(), items.len(), "every item is served");
        let rate = terms.rate.unwrap();
        // Expect: in any stretch of services no more bytes than the rate permits, less the part
        // of a picosecond by which a moment is rounded.
        for from in 0..served.len() {
            let mut bytes = 0;
            for (_, service) in &served[from..] {
                bytes += service.item.bytes;
                let took = service.done_ps - served[from].0;
                prop_assert!(took + 1 >= rate.time_ps(bytes));
            }
        }
    }

    #[test]
    fn a_resource_without_a_window_is_never_idle_while_items_wait(
        terms in terms(),
        items in items(),
    ) {
        let terms = Terms { window: None, ..terms };
        let served = serve(terms, &items);
        let mut free = 0;
        for (start, service) in &served {
            let offered = items[service.item.id as usize].0;
            // Expect: an item begins when it comes, or when the one before is done.
            prop_assert_eq!(*start, offered.max(free));
            prop_assert_eq!(service.arrives_ps, service.done_ps + terms.latency_ps);
            free = service.done_ps;
        }
    }

    #[test]
    fn items_of_a_user_keep_their_order(terms in terms(), items in items()) {
        let served = serve(terms, &items);
        for user in 0..4 {
            let ids: Vec<u64> = served
                .iter()
                .filter(|(_, service)| service.item.user == user)
                .map(|(_, service)| service.item.id)
                .collect();
            prop_assert!(ids.is_sorted());
        }
    }

    #[test]
    fn the_same_circuit_gives_the_same_times(
        tags in 1u32..8, bytes in 1u64..5000, count in 1u32..50,
    ) {
        let run = || {
            let mut circuit = Circuit::default();
            let pool = circuit.add(Terms { window: Some(tags), ..Terms::default() });
            let rate = Some(Rate::new(7, 300));
            let link = circuit.add(Terms { rate, latency_ps: 900, ..Terms::default() });
            let route: Route =
                [Step::Take(pool), Step::Pass(link, bytes), Step::Wait(50), Step::Release(pool)]
                    .into();
            for id in 0..count {
                circuit.send(u64::from(id % 3), id, route.clone(), id);
            }
            let mut ends = Vec::new();
            while let Some(id) = circuit.next_end() {
                assert!(circuit.held(pool) <= tags, "more than the window is in flight");
                ends.push((id, circuit.now()));
            }
            assert_eq!((circuit.held(pool), circuit.held(link)), (0, 0), "a place was kept");
            ends
        };
        let ends = run();
        prop_assert_eq!(ends.len(), count as usize);
        // Little's law: no more than the window in the time that one takes.
        let once = Rate::new(7, 300).time_ps(bytes) + 950;
        let least = (u64::from(count) * once).div_ceil(u64::from(tags));
        prop_assert!(ends.last().unwrap().1 + 2 >= least.min(once * u64::from(count)));
        prop_assert_eq!(ends, run());
    }
}
