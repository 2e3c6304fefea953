//! The table `[host.tuning]`: the figures of the transport.

use super::section::{Mistake, Section};
use crate::flows::{Cluster, Parameter};

/// Sets what the table says. The transport is known.
pub(super) fn read(mut section: Section<'_>, cluster: &mut Cluster) -> Result<(), Mistake> {
    let mut tuned = cluster.tuned();
    for parameter in Parameter::of(&cluster.transport) {
        if let Some(value) = section.parameter(parameter)? {
            parameter.set(&mut tuned, value);
        }
    }
    cluster.tuned = Some(tuned);
    section.end()
}

#[cfg(test)]
mod tests {
    use super::super::{Experiment, Mistake, Overrides};
    use crate::flows::{Parameter, Report, TRANSPORTS, Unit};

    /// Eight hosts to one, with marks.
    fn world(transport: &str, tuning: &str) -> String {
        format!(
            "[topology]\nshape = \"star\"\nhosts = 9\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
             [switch]\nbuffer = \"1MB\"\nmark = \"50KB\"\n\
             [host]\ntransport = \"{transport}\"\n[host.tuning]\n{tuning}\n\
             [[workload]]\nkind = \"incast\"\nsources = \"1..8\"\ntarget = 0\n\
             bytes = \"2MB\"\n"
        )
    }

    fn parse(text: &str) -> Result<Experiment, Mistake> {
        Experiment::parse(text, &|_| Err("no files".into()), Overrides::default())
    }

    fn run(transport: &str, tuning: &str) -> Report {
        let experiment = parse(&world(transport, tuning)).unwrap();
        experiment.cluster.run(&experiment.flows.flows).unwrap()
    }

    /// A transport that is told what it does anyway does the same, and each parameter that is told
    /// another way is another run.
    #[test]
    fn what_a_world_sets_is_what_runs() {
        for transport in TRANSPORTS {
            let cluster = parse(&world(transport.name, "")).unwrap().cluster;
            let line = |p: &Parameter| format!("{} = \"{}\"", p.name, p.shown(&cluster.tuned()));
            let all: Vec<String> = Parameter::of(transport).map(line).collect();
            let told = parse(&world(transport.name, &all.join("\n"))).unwrap().cluster;
            for parameter in Parameter::of(transport) {
                let (own, told) = (parameter.get(&cluster.tuned()), parameter.get(&told.tuned()));
                assert!(own.abs_diff(told) <= own / 1000, "{} {}", transport.name, parameter.name);
            }
        }
        for (transport, tuning) in [
            ("dctcp", "gain = 1"),
            ("dcqcn", "gain = 0.5"),
            ("dcqcn", "decrease-every = \"10us\""),
            ("dcqcn", "increase-every = \"300us\""),
            ("dcqcn", "increase-bytes = \"100KB\""),
            ("dcqcn", "notify-every = \"200us\""),
            ("dcqcn", "least-rate = \"20Gbps\""),
            ("dcqcn", "fast-rises = 0"),
            ("swift", "target = \"100us\""),
            ("swift", "scaling = \"0us\""),
            ("swift", "beta = 0.1"),
            ("go-back-n", "notify-every = \"10us\""),
            ("selective", "paths = 8"),
            ("selective", "ack-every = 2"),
            ("irn", "gain = 0.5"),
            ("srnic", "gain = 1"),
        ] {
            let (own, other) = (run(transport, ""), run(transport, tuning));
            assert_ne!(own.trace.hash, other.trace.hash, "{transport}: {tuning}");
        }
    }

    /// A value that is shown is read as the same: bytes and times of any number of digits. (Rates
    /// are kept as the time of a byte, and parts are shown with six digits.)
    #[test]
    fn what_is_shown_can_be_set() {
        let transport = TRANSPORTS.iter().find(|transport| transport.name == "dcqcn").unwrap();
        let mut random = crate::dice::SplitMix::new(5);
        let units = [Unit::Number, Unit::Time, Unit::Bytes];
        let parameters = Parameter::of(transport).filter(|of| units.contains(&of.unit));
        for parameter in parameters.flat_map(|parameter| [parameter; 200]) {
            let (least, most) = (*parameter.bounds.start(), *parameter.bounds.end());
            let value = (random.number() >> (random.number() % 64)) % (most - least + 1) + least;
            let shown = parameter.unit.shown(value);
            let text = world("dcqcn", &format!("{} = \"{shown}\"", parameter.name));
            let told = parse(&text).unwrap_or_else(|mistake| panic!("{}: {text}", mistake.message));
            assert_eq!(parameter.get(&told.cluster.tuned()), value, "{text}");
        }
    }

    /// What no loss shows: how often and how long is waited for a peer that is gone.
    #[test]
    fn waits_and_retries_are_what_they_are_set_to() {
        let gone = |transport: &str, tuning: &str| {
            let text = world(transport, tuning)
                + "[[change]]\nat = \"5us\"\n\
                cable = [\"host 0\", \"switch 0\"]\nlearnt-after = \"1s\"\n";
            let Experiment { cluster, flows, .. } = parse(&text).unwrap();
            let report = cluster.run(&flows.flows).unwrap();
            assert_eq!(report.failed(), 8, "{report}");
            report.stopped
        };
        for transport in ["go-back-n", "selective", "irn"] {
            let (own, once) = (gone(transport, ""), gone(transport, "retries = 1"));
            assert!(once < own, "{transport}: {once} and {own}");
        }
        let (own, longer) = (gone("srnic", ""), gone("srnic", "wait = \"5ms\"\nfew = 0"));
        assert!(longer > own, "{longer} and {own}");
    }

    #[test]
    fn what_a_transport_has_not_is_refused() {
        let wrong = |transport: &str, tuning: &str| {
            let text = world(transport, tuning);
            let mistake = parse(&text).unwrap_err();
            (text[mistake.at].to_owned(), mistake.message, mistake.help)
        };
        let (at, message, help) = wrong("dctcp", "gian = 0.5");
        assert_eq!(at, "gian");
        assert_eq!(message, "[host.tuning] has no `gian`, as the rest of it stands");
        assert_eq!(help, "it may have `retries`, `ack-every`, `paths`, `gain`");
        assert_eq!(wrong("selective", "target = \"30us\"").0, "target");
        let (at, _, help) = wrong("swift", "target = \"30\"");
        assert_eq!((&*at, &*help), ("\"30\"", "it should be a time from 1us to 1s"));
        for (transport, tuning, range) in [
            ("dctcp", "gain = 0", "a part of the whole from 0.000015 to 1"),
            ("dcqcn", "gain = 1.5", "a part of the whole from 0.000015 to 1"),
            ("dcqcn", "additive = \"10bps\"", "a rate from 1Mbps to 100Tbps"),
            ("dcqcn", "increase-bytes = 100", "a number of bytes from 4.096KB to 1000GB"),
            ("selective", "paths = 3", "a power of two from 1 to 64"),
            ("irn", "retries = 8", "a number from 0 to 7"),
        ] {
            assert_eq!(wrong(transport, tuning).2, format!("it should be {range}"));
        }
    }
}
