use std::future::ready;

use super::*;
use crate::way::map::MapGroup;

/// Nodes of a cluster that gets a group more once one of them is asked to do something.
#[derive(Debug, Default)]
struct Growing {
    /// Failures that come before.
    failures: Vec<StoreError>,
    has_grown: bool,
    /// Who has done what was asked.
    done: Vec<u16>,
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A map of groups whose names are the ports of their primaries.
fn map(ports: &[u16]) -> ClusterMap {
    let group = |port: &u16| MapGroup {
        name: port.to_string(),
        epoch: 1,
        primary: Some(at(*port)),
        nodes: vec![at(*port)],
    };
    ClusterMap { groups: ports.iter().map(group).collect(), ..ClusterMap::default() }
}

impl Fleet for Growing {
    async fn call_at(
        &mut self,
        (to, _): (SocketAddr, Duration),
        operation: Operation,
        _: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        if operation == Operation::Map {
            let text = map(if self.has_grown { &[7, 1, 2] } else { &[1, 2] }).to_text();
            let head = AnswerHead { value_len: text.len() as u32, ..AnswerHead::default() };
            out.extend_from_slice(&head.to_bytes());
            out.extend_from_slice(text.as_bytes());
            return Ok(());
        }
        if let Some(failure) = self.failures.pop() {
            self.has_grown = true;
            return Err(failure);
        }
        self.done.push(to.port());
        out.extend_from_slice(&AnswerHead::default().to_bytes());
        Ok(())
    }

    async fn pause(&mut self) {
        ready(()).await;
    }
}

fn routed(failures: Vec<StoreError>) -> Routed<Growing> {
    let fleet = Growing { failures, ..Growing::default() };
    let begun = Routed::begin(fleet, at(1), Duration::from_secs(60));
    remora::wait_for(begun, Duration::from_secs(60)).unwrap().unwrap()
}

/// Returns the version that is answered.
fn call(
    routed: &mut Routed<Growing>,
    operation: Operation,
    argument: u64,
) -> Result<u64, StoreError> {
    let (call, mut out) = (Call { argument, ..Call::default() }, Vec::new());
    let called = routed.call(operation, &call, &mut out);
    remora::wait_for(called, Duration::from_secs(60)).unwrap()?;
    Ok(AnswerHead::parse(&out).unwrap().0.version)
}

fn elsewhere() -> Vec<StoreError> {
    vec![StoreError::Refused(Refused::Elsewhere)]
}

/// Another place of a group in the map is no other group.
#[test]
fn all_groups_are_flushed_although_there_are_more_meanwhile() {
    let mut routed = routed(elsewhere());
    call(&mut routed, Operation::Flush, 0).unwrap();
    routed.fleet.done.sort_unstable();
    assert_eq!(routed.fleet.done, [1, 2, 7]);
}

#[test]
fn a_scan_is_of_all_groups_that_there_are() {
    let mut routed = routed(elsewhere());
    let cursors = [0, NEXT_GROUP, NEXT_GROUP];
    let next = cursors.map(|cursor| call(&mut routed, Operation::Scan, cursor).unwrap());
    assert_eq!(next, [NEXT_GROUP, NEXT_GROUP, 0]);
    // Before and after the scan, each is asked what it has handed over.
    assert_eq!(routed.fleet.done, [1, 7, 2, 1, 2, 7, 7, 1, 2]);
}

/// A group more may have got keys of those that were scanned, wherever it stands in the map.
#[test]
fn a_scan_ends_where_there_are_more_groups_meanwhile() {
    let mut routed = routed(Vec::new());
    assert_eq!(call(&mut routed, Operation::Scan, 0).unwrap(), NEXT_GROUP);
    routed.fleet.has_grown = true;
    let ended = call(&mut routed, Operation::Scan, NEXT_GROUP);
    assert!(matches!(ended, Err(StoreError::Moved)), "{ended:?}");
}

/// A call for which there was no place was not sent: it can be made again.
#[test]
fn what_was_not_sent_is_not_in_doubt() {
    let (next, is_in_doubt) = next(&StoreError::Call(CallFailure::Full(1)));
    assert!(matches!(next, Next::Wait) && !is_in_doubt);
}
