//! What a world's transport is set to.

use std::collections::{BTreeMap, BTreeSet};

use remora_sim::flows::{Cluster, Parameter, Tuned, Unit};

/// The settings of a transport: by name, in words.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// All that it has.
    pub(super) all: BTreeMap<&'static str, String>,
    /// Those that are not its own.
    tuned: BTreeSet<&'static str>,
}

impl Settings {
    pub(super) fn of(cluster: &Cluster) -> Settings {
        let (tuned, own) = (cluster.tuned(), Tuned::of(&cluster.transport));
        let mut settings = Settings::default();
        for parameter in Parameter::of(&cluster.transport) {
            settings.all.insert(parameter.name, parameter.shown(&tuned));
            if parameter.get(&tuned) != parameter.get(&own) {
                settings.tuned.insert(parameter.name);
            }
        }
        // 4.096 µs, twice as much for each step.
        let timeout = Unit::Time.shown(4096 << cluster.timeout);
        settings.all.extend([
            ("window", cluster.window_packets.to_string()),
            ("mtu", cluster.mtu.bytes().to_string()),
            ("timeout", timeout),
        ]);
        settings
    }

    /// Those that the file has set, in a line; empty if it has set none.
    pub(super) fn shown(&self) -> String {
        let one = |name: &&'static str| format!("{name} {}", self.all[name]);
        self.tuned.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// The names of those that tell worlds apart: that a file has set, or of which those that have
    /// them have different ones.
    pub(super) fn apart(worlds: &[Settings]) -> Vec<&'static str> {
        let names: BTreeSet<&'static str> =
            worlds.iter().flat_map(|world| world.all.keys().copied()).collect();
        let differs = |name: &&'static str| {
            let mut values = worlds.iter().filter_map(|world| world.all.get(name));
            let first = values.next();
            let is_tuned = worlds.iter().any(|world| world.tuned.contains(name));
            is_tuned || values.any(|value| Some(value) != first)
        };
        names.into_iter().filter(differs).collect()
    }
}

#[cfg(test)]
mod tests {
    use remora_sim::flows::Transport;
    use remora_sim::net::{LineRate, Star};

    use super::*;

    #[test]
    fn worlds_are_told_apart_by_what_is_set_and_what_differs() {
        let star = Star { hosts: 2, rate: LineRate::gigabits(100), delay: 0 };
        let mut cluster = Cluster::new(star.topology());
        let mut of = |name: &str, target: u64| {
            cluster.transport = Transport::named(name).unwrap();
            let mut tuned = Tuned::of(&cluster.transport);
            tuned.policies.swift.target_ns = target;
            cluster.tuned = Some(tuned);
            Settings::of(&cluster)
        };
        let (own, other, dctcp) = (of("swift", 20_000), of("swift", 50_000), of("dctcp", 20_000));
        assert_eq!((own.shown(), other.shown()), (String::new(), "target 50us".into()));
        assert_eq!(own.all["timeout"], "524.288us");
        let apart = |a: &Settings, b: &Settings| Settings::apart(&[a.clone(), b.clone()]);
        assert!(apart(&own, &own).is_empty());
        assert_eq!(apart(&own, &other), ["target"]);
        assert!(apart(&own, &dctcp).is_empty(), "the transport is told anyway");
        assert_eq!(apart(&dctcp, &other), ["target"]);
    }
}
