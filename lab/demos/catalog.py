"""Demonstrations, in the list of recipes."""

from lab.demos.demo import DemoEntry

DEMOS = {
    "demo/gmoe": DemoEntry("lab.demos.gmoe:DEMO", "GMoE: cases whose frequencies are reversed in the target"),
}
