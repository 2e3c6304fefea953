//! Which session `remora nic evict` ends.

use super::{Client, Daemon};
use crate::message::{ClientRequest, Hello, Keep};

#[test]
fn sessions_are_evicted_by_name_and_number() {
    let daemon = Daemon::start();
    let hello = Hello { name: Some("rank 0".into()), keep: Keep::Forever, ..Hello::default() };
    let named = Client::attach(&daemon, &hello).unwrap();
    named.queues();
    let observer = daemon.observer();
    let refused = observer.refusal(&ClientRequest::Evict("rank 1"), &[]).unwrap();
    assert!(refused.contains("rank 1"), "{refused}");
    assert_eq!(observer.refusal(&ClientRequest::Evict("rank 0"), &[]), None);
    let farewell = named.asker.farewell();
    let own = rustix::process::geteuid().as_raw();
    let user = if own == 0 { "root".to_owned() } else { format!("user {own}") };
    let by = format!("by {user}, process {}, at 20", std::process::id());
    assert!(farewell.contains("evict") && farewell.contains(&by), "{farewell}");
    let token = Some(named.welcome.token);
    let taken = Client::attach(&daemon, &Hello { token, ..hello }).map(drop).unwrap_err();
    assert_eq!(taken, farewell);
    let other = daemon.client();
    let number = other.welcome.session.to_string();
    assert_eq!(observer.refusal(&ClientRequest::Evict(&number), &[]), None);
    assert!(other.asker.farewell().contains("evict"));
    daemon.wait_until_empty();
}

/// A session may be named as another one is numbered: what could mean both ends neither.
#[test]
fn a_name_that_is_a_number_ends_no_other_session() {
    let daemon = Daemon::start();
    let observer = daemon.observer();
    let evict = |text: &str| observer.refusal(&ClientRequest::Evict(text), &[]);
    let numbered = daemon.client();
    let number = numbered.welcome.session;
    let named =
        |name: String| Client::attach(&daemon, &Hello { name: Some(name), ..Hello::default() });
    let other = named(number.to_string()).unwrap();
    let refused = evict(&number.to_string()).unwrap();
    for one in [&numbered, &other] {
        assert!(refused.contains(&format!("%{} (named ", one.welcome.session)), "{refused}");
    }
    for text in ["%", "%x", "+1", "%+1", "%99999999999", "99999999999", ""] {
        assert!(evict(text).unwrap().contains("there is no session"), "{text}");
    }
    assert_eq!(evict(&format!("%{number}")), None);
    assert!(numbered.asker.farewell().contains("evict"));
    assert_eq!(evict(&number.to_string()), None, "it is the only one now");
    assert!(other.asker.farewell().contains("evict"));
    daemon.wait_until_empty();
    let refused = named("%7".into()).map(drop).unwrap_err();
    assert!(format!("{refused:?}").contains("%7"), "{refused:?}");
}
