// Package fleet is tests of many agents against one OpenTelemetry collector on this machine.
//
// A fleet's agents are the agent's own code, one of each for each machine that is played: intervals, queues, pauses, encoding, and a connection of its
// own. What differs is where samples come from: from nowhere, or from the requests that real agents sent of real programs, with another machine's
// name in them. TestFleet is for each run of the tests; TestScale measures, for docs/FLEET.md; make fleet runs it with
// 10,000 agents.
package fleet
