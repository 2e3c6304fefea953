//! What etcd has of a cluster: the names of its keys, and its documents, in JSON. A program that
//! may write there may write anything, so each document is looked at before it is believed.

use remora::connection::token::Token;
use remora_store::replica::{Configuration, MEMBERS_MAX, NodeId, are_members};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::group::{founding_of, is_ring};
use crate::history::EpochChange;
use crate::map::{Atlas, SlotMap};

/// The most changes of epoch that an entry may tell of.
const CHANGES_MAX: usize = 64;
/// The key of the map, below the cluster's prefix.
pub(crate) const SLOTS: &str = "slots";

/// The key of a group's size, below the group's prefix.
pub(crate) const SIZE: &str = "size";
/// The key of what a group's nodes agree on, below the group's prefix.
pub(crate) const AGREED: &str = "group";

/// The version of all that nodes share: what they write into etcd, say to each other, and log. The
/// nodes of a group are of one.
pub(crate) const VERSION: u32 = 5;

/// That of groups in whose documents there is none.
const fn unwritten() -> u32 {
    1
}

/// What all nodes of a group have in common. The node that comes first draws it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Agreed {
    pub(crate) version: u32,
    pub(crate) salt: u64,
    pub(crate) token: [u8; 16],
    pub(crate) ring_bytes: u64,
    pub(crate) lease_ms: u64,
    /// The group has begun before: only nodes that have a part of its log can begin it again.
    #[serde(default)]
    pub(crate) is_restored: bool,
}

/// A group's entry as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Written {
    #[serde(flatten)]
    pub(crate) configuration: Configuration,
    #[serde(default)]
    pub(crate) is_free: bool,
    /// How the group came here, for people.
    #[serde(default)]
    pub(crate) changes: Vec<EpochChange>,
}

/// A key of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Agreed,
    Configuration,
    Size,
    Node(NodeId),
}

/// How many members a group is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Size(pub(crate) u8);

/// A document.
pub(crate) trait Document: DeserializeOwned {
    /// Whether what it says can be.
    fn is_sound(&self) -> bool;

    /// Reads it; `None` if it is none, or says what cannot be.
    fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(Self::is_sound)
    }
}

impl Agreed {
    /// What a group agrees on, for a node of this version.
    ///
    /// # Errors
    /// The group is of another version, or the document is none: in words.
    pub(crate) fn understand(bytes: &[u8]) -> Result<Agreed, String> {
        /// What a document of any version has.
        #[derive(Deserialize)]
        struct Any {
            #[serde(default = "unwritten")]
            version: u32,
        }
        match serde_json::from_slice(bytes) {
            Ok(Any { version }) if version != VERSION => Err(format!(
                "its nodes are of version {version}, and this one is of version {VERSION}: start \
                 all from one release"
            )),
            _ => Agreed::read(bytes).ok_or_else(|| unreadable("what the group agrees on")),
        }
    }
}

/// Why a document is not believed.
pub(crate) fn unreadable(what: &str) -> String {
    format!("{what} is not as expected: was it written by another version?")
}

impl Document for Agreed {
    fn is_sound(&self) -> bool {
        is_ring(self.ring_bytes) && self.lease_ms > 0 && Token::new(self.token).is_some()
    }
}

impl Document for Written {
    fn is_sound(&self) -> bool {
        self.configuration.is_sound() && self.changes.len() <= CHANGES_MAX
    }
}

/// One place is left for a node that takes another one's.
impl Document for Size {
    fn is_sound(&self) -> bool {
        (1..MEMBERS_MAX).contains(&usize::from(self.0))
    }
}

impl Document for Address {
    fn is_sound(&self) -> bool {
        self.members.is_empty() || are_members(&self.members)
    }
}

impl Document for SlotMap {
    fn is_sound(&self) -> bool {
        SlotMap::is_sound(self)
    }
}

/// What a key of a group is for; `rest` is what follows the group's prefix.
pub(crate) fn key_of(rest: &str) -> Option<Key> {
    match rest {
        AGREED => Some(Key::Agreed),
        "configuration" => Some(Key::Configuration),
        SIZE => Some(Key::Size),
        rest => {
            let number = rest.strip_prefix("nodes/")?;
            number.parse().ok().map(|number| Key::Node(NodeId(number)))
        }
    }
}

/// Takes note of a document, whose key is this below the cluster's prefix. `revision` is that of
/// its last change.
///
/// # Errors
/// It cannot be understood, in words.
pub(crate) fn note(
    atlas: &mut Atlas,
    key: &str,
    value: &[u8],
    revision: i64,
) -> Result<(), String> {
    let unreadable = || unreadable(&format!("{} in etcd", remora::printable(key)));
    if key == SLOTS {
        let map = SlotMap::read(value).ok_or_else(unreadable)?;
        (atlas.slots, atlas.revision) = (Some(map), revision);
        return Ok(());
    }
    let Some((group, rest)) = key.split_once('/') else { return Ok(()) };
    let Some(what) = key_of(rest) else { return Ok(()) };
    let view = atlas.groups.entry(group.to_owned()).or_default();
    match what {
        // (A group of another version is no other group's concern.)
        Key::Agreed => {
            view.founding = Agreed::read(value).map(|agreed| founding_of(agreed.salt));
        }
        Key::Configuration => {
            let written = Written::read(value).ok_or_else(unreadable)?;
            view.configuration = Some(written.configuration);
            view.changes = written.changes;
        }
        Key::Size => view.size = Some(Size::read(value).ok_or_else(unreadable)?.0),
        // (One that cannot be read is not there: it must not stop the others.)
        Key::Node(node) => view.nodes.extend(Address::read(value).map(|address| (node, address))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(members: &str, established: &str) -> Option<Written> {
        let text =
            format!(r#"{{"epoch":3,"primary":2,"members":{members},"established":{established}}}"#);
        Written::read(text.as_bytes())
    }

    #[test]
    fn documents_that_cannot_be_are_refused() {
        let entry_of = entry("[1,2]", "[1,2,3]").expect("a member has left");
        assert!(!entry_of.is_free && !entry_of.configuration.is_established());
        for (members, established) in [
            ("[]", "[1,2]"),
            ("[1,2]", "[]"),
            ("[1,3]", "[1,3]"),
            ("[2,1]", "[1,2]"),
            ("[2,2]", "[2,2]"),
            ("[1,2,3,4]", "[1,2]"),
            ("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "[1,2]"),
        ] {
            assert!(entry(members, established).is_none(), "{members} {established}");
        }
        let agreed = |ring, lease| {
            let own = Agreed {
                version: VERSION,
                salt: 1,
                token: [1; 16],
                ring_bytes: ring,
                lease_ms: lease,
                is_restored: false,
            };
            Agreed::read(&serde_json::to_vec(&own).unwrap()).is_some()
        };
        assert!(agreed(1 << 16, 500));
        assert!(!agreed(1 << 16, 0) && !agreed((1 << 16) + 1, 500) && !agreed(u64::MAX - 7, 1));
        for wrong in ["", "{}", "null", "[[{\"first\":5,\"last\":4},{\"group\":\"a\"}]]", "[7]"] {
            assert!(SlotMap::read(wrong.as_bytes()).is_none(), "{wrong}");
            assert!(Address::read(wrong.as_bytes()).is_none(), "{wrong}");
        }
        for members in ["[]", "[7]", "[1,2,3]"] {
            let text = format!(r#"{{"card":"[::1]:7","redis":null,"members":{members}}}"#);
            assert!(Address::read(text.as_bytes()).is_some(), "{members}");
        }
        let many = format!("[{}1000]", "1,".repeat(1 << 20));
        for members in ["[2,1]", "[1,1]", "[-1]", "1", "null", &many] {
            let text = format!(r#"{{"card":"[::1]:7","redis":null,"members":{members}}}"#);
            assert!(Address::read(text.as_bytes()).is_none(), "{members:.20}");
        }
        for wrong in ["", "0", "16", "-1", "256", "[3]", "null"] {
            assert!(Size::read(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert_eq!(Size::read(b"15"), Some(Size(15)));
    }

    #[test]
    fn a_group_of_another_version_is_told_by_what_it_agrees_on() {
        let rest = r#""salt":1,"token":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"lease_ms":1"#;
        let said = |more: &str| {
            let text = format!(r#"{{{more}{rest},"ring_bytes":65536}}"#);
            Agreed::understand(text.as_bytes()).map(|agreed| agreed.version)
        };
        assert_eq!(said(r#""version":5,"#), Ok(5));
        assert!(said("").unwrap_err().contains("of version 1"));
        assert!(said(r#""version":4,"#).unwrap_err().contains("of version 4"));
        // Whatever else a later version has agreed on.
        let later = Agreed::understand(br#"{"version":6}"#).unwrap_err();
        assert!(later.contains("version 6") && later.contains("one release"), "{later}");
        assert!(
            Agreed::understand(br#"{"version":5}"#)
                .unwrap_err()
                .contains("what the group agrees on")
        );
    }

    #[test]
    fn a_cluster_is_made_of_what_its_keys_say() {
        let mut atlas = Atlas::default();
        let mut told = |key: &str, value: &str| note(&mut atlas, key, value.as_bytes(), 7);
        let at = r#"{"card":"127.0.0.1:7","redis":null}"#;
        assert_eq!(told("a/nodes/5", at), Ok(()));
        assert_eq!(told("a/nodes/x", "what others have there"), Ok(()));
        assert_eq!(told("other", "the same"), Ok(()));
        assert_eq!(told("a/nodes/6", "{}"), Ok(()), "one that cannot be read stops nobody");
        let slots = r#"[[{"first":0,"last":9},{"group":"a","to":null}]]"#;
        assert_eq!(told(SLOTS, slots), Ok(()));
        assert_eq!(told("a/size", "5"), Ok(()));
        let agreed = concat!(
            r#"{"version":4,"salt":5,"token":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"#,
            r#""ring_bytes":65536,"lease_ms":500}"#
        );
        assert_eq!(told("a/group", agreed), Ok(()));
        assert_eq!(told("b/group", r#"{"version":5}"#), Ok(()), "another release's stops nobody");
        assert!(told("a/size", "0").unwrap_err().contains("a/size in etcd"));
        assert_eq!((atlas.revision, atlas.groups.len()), (7, 2));
        assert_eq!(atlas.groups["a"].founding, Some(founding_of(5)));
        assert_eq!(atlas.groups["b"].founding, None);
        assert_eq!(atlas.groups["a"].size, Some(5));
        assert!(atlas.groups["a"].nodes.keys().eq([&NodeId(5)]));
    }
}
