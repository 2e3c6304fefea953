//! Modules that are small and would take a compiler minutes, and those that only look like it.

use remora_wasm::{LoadError, Module};

/// A module with these parts behind its kernel, which is function 0.
fn load(parts: &str) -> Result<(), LoadError> {
    let entry = r#"(func (export "kernel") (result i32) (i32.const 0))"#;
    Module::load(&wat::parse_str(format!("(module {entry} {parts})")).unwrap()).map(drop)
}

fn function(locals: usize, body: &str) -> String {
    format!("(func (local {}) {body})", "i32 ".repeat(locals))
}

const BRANCH: &str = "(br_if 0 (local.tee 1 (i32.add (local.get 2) (i32.const 3))))";

fn nested_loops(depth: usize) -> String {
    format!("{}{}", "(loop ".repeat(depth), format!("{BRANCH})").repeat(depth))
}

fn loops_in_turn(times: usize) -> String {
    format!("(loop {BRANCH})").repeat(times)
}

/// A type of functions that take and give a thousand values.
fn wide(name: &str) -> String {
    format!("(type {name} (func (param {0}) (result {0})))", "i32 ".repeat(1000))
}

#[test]
fn what_would_take_long_to_compile_is_refused() {
    let table = format!("(block (br_table {} (local.get 0)))", "0 ".repeat(60_000));
    let blocks = "(block (type $wide) unreachable)".repeat(3_000);
    let calls = "(drop (call_indirect (result i32) (i32.const 0)))".repeat(12_000);
    let divisions = "(drop (i32.rem_s (local.get 0) (local.get 0)))".repeat(150_000);
    let conversions = "(drop (i32.trunc_f32_s (f32.convert_i32_s (local.get 0))))".repeat(40_000);
    let segments = "(data \"x\")".repeat(5_000);
    let inits = |i| format!("(memory.init {i} (i32.const 0) (i32.const 0) (i32.const 1))");
    let inits: String = (0..5_000).map(inits).collect();
    for (name, parts) in [
        ("nested loops", function(10, &nested_loops(3_000))),
        ("nested loops and locals", function(1_000, &nested_loops(1_000))),
        ("loops in turn and locals", function(1_000, &loops_in_turn(13_000))),
        ("a table of branches", function(1, &table)),
        ("blocks of many values", wide("$wide") + &function(0, &format!("unreachable {blocks}"))),
        ("indirect calls", "(table 1 funcref)".to_owned() + &function(0, &calls).repeat(4)),
        ("divisions", function(1, &divisions)),
        ("conversions", function(1, &conversions)),
        ("segments", format!("(memory 1) {segments} (func {inits})")),
        ("functions", "(func)".repeat(40_000)),
        (
            "functions of many values",
            wide("$t")
                + &"(func (type $t) unreachable)".repeat(300)
                + &{
                    let all: String = (1..301).map(|i| format!("{i} ")).collect();
                    format!("(table 300 funcref) (elem (i32.const 0) func {all})")
                },
        ),
        ("types", (0..450).map(|i| wide(&format!("$t{i}"))).collect()),
    ] {
        let refused = load(&parts);
        assert!(matches!(refused, Err(LoadError::Compile(_))), "{name}: {refused:?}");
    }
}

#[test]
fn what_each_instance_would_take_long_to_set_up_is_refused() {
    let table = "(memory 1) (table 1 funcref)";
    for part in
        ["(global i32 (i32.const 0))", "(data (i32.const 0) \"\")", "(elem (i32.const 0) func)"]
    {
        let refused = load(&format!("{table} {}", part.repeat(5_000)));
        assert_eq!(refused, Err(LoadError::Parts), "{part}");
        assert_eq!(load(&format!("{table} {}", part.repeat(4_000))), Ok(()), "{part}");
    }
}

#[test]
fn the_refusal_says_what_is_too_much() {
    let parts = function(3, "") + &function(1_000, &nested_loops(1_000));
    let error = load(&parts).unwrap_err().to_string();
    for words in ["too long to compile", "function 2", "1002 values", "loops within each other"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn what_compilers_emit_is_far_from_that() {
    let parts = [
        function(100, &nested_loops(30)),
        function(100, &loops_in_turn(200)),
        "(func)".repeat(100),
    ];
    assert_eq!(load(&parts.concat()), Ok(()));
}
